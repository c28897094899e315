"""The admin client for programs without an event loop."""

from typing import TYPE_CHECKING, Any

from mqtool.engine.client_runtime.blocking.background import BlockingClient, LazyModule, arguments_of_class, blocking

if TYPE_CHECKING:
    from mqtool.engine.client_runtime import admin_client as aio
else:
    aio = LazyModule("mqtool.engine.client_runtime.admin_client")


class AdminClient(BlockingClient["aio.AdminClient"]):
    """Queries and changes brokers, from ``with`` to the end of its block; see ``aio.AdminClient``."""

    @arguments_of_class(lambda: aio.AdminClient)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(lambda: aio.AdminClient(*args, **kwargs))

    brokers = blocking(lambda: aio.AdminClient.brokers)
    broker_stats = blocking(lambda: aio.AdminClient.broker_stats)
    replication = blocking(lambda: aio.AdminClient.replication)
    topics = blocking(lambda: aio.AdminClient.topics)
    topic_queues = blocking(lambda: aio.AdminClient.topic_queues)
    create_topic = blocking(lambda: aio.AdminClient.create_topic)
    delete_topic = blocking(lambda: aio.AdminClient.delete_topic)
    group_names = blocking(lambda: aio.AdminClient.group_names)
    groups = blocking(lambda: aio.AdminClient.groups)
    group = blocking(lambda: aio.AdminClient.group)
    create_group = blocking(lambda: aio.AdminClient.create_group)
    delete_group = blocking(lambda: aio.AdminClient.delete_group)
    offsets = blocking(lambda: aio.AdminClient.offsets)
    set_offset = blocking(lambda: aio.AdminClient.set_offset)
    reset_offsets = blocking(lambda: aio.AdminClient.reset_offsets)
    copy_offsets = blocking(lambda: aio.AdminClient.copy_offsets)
    shift_offsets = blocking(lambda: aio.AdminClient.shift_offsets)
    export_offsets = blocking(lambda: aio.AdminClient.export_offsets)
    import_offsets = blocking(lambda: aio.AdminClient.import_offsets)
    apply = blocking(lambda: aio.AdminClient.apply)
