"""The admin client for programs without an event loop."""

from typing import Any

from mqtool.engine.client_runtime import admin_client as aio
from mqtool.engine.client_runtime.blocking.background import BlockingClient, arguments_of_class, blocking


class AdminClient(BlockingClient[aio.AdminClient]):
    """Asks brokers, and changes them, from ``with`` to the end of its block; see ``aio.AdminClient``."""

    @arguments_of_class(aio.AdminClient)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(lambda: aio.AdminClient(*args, **kwargs))

    brokers = blocking(aio.AdminClient.brokers)
    broker_figures = blocking(aio.AdminClient.broker_figures)
    topics = blocking(aio.AdminClient.topics)
    topic_queues = blocking(aio.AdminClient.topic_queues)
    create_topic = blocking(aio.AdminClient.create_topic)
    delete_topic = blocking(aio.AdminClient.delete_topic)
    group_names = blocking(aio.AdminClient.group_names)
    groups = blocking(aio.AdminClient.groups)
    group = blocking(aio.AdminClient.group)
    create_group = blocking(aio.AdminClient.create_group)
    delete_group = blocking(aio.AdminClient.delete_group)
    offsets = blocking(aio.AdminClient.offsets)
    set_offset = blocking(aio.AdminClient.set_offset)
    reset_offsets = blocking(aio.AdminClient.reset_offsets)
    copy_offsets = blocking(aio.AdminClient.copy_offsets)
    shift_offsets = blocking(aio.AdminClient.shift_offsets)
    export_offsets = blocking(aio.AdminClient.export_offsets)
    import_offsets = blocking(aio.AdminClient.import_offsets)
    apply = blocking(aio.AdminClient.apply)
