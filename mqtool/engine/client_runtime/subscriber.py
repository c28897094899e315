"""The common part of all subscribing consumers: their subscriptions."""

from collections.abc import Callable, Sequence

from mqtool.engine.client import consuming
from mqtool.engine.client.names import DEFAULT_CONSUMER, check_topic, with_namespace
from mqtool.engine.client_runtime.client import Client
from mqtool.engine.client_runtime.instance import ClientOptions
from mqtool.formats.bodies import Subscription


class Subscriber(Client):
    """A client that subscribes to topics."""

    _kind = "consumer"
    _reserved = DEFAULT_CONSUMER

    def __init__(
        self, group: str, name_servers: str | Sequence[str] | None, options: ClientOptions, clock: Callable[[], int]
    ) -> None:
        super().__init__(group, name_servers, options, clock)
        self._instance.producers_only = False
        self._subscriptions: dict[str, Subscription] = {}

    def subscribe(self, topic: str, expression: str = "*", *, is_sql92: bool = False) -> None:
        """Subscribe to a topic, or to the messages that match an expression: tags with ``||``, or SQL92.

        Raises:
            UsageError: it is not a valid name of a topic.
            FilterError: the expression has no tag.
        """
        check_topic(topic)
        self._subscribe(with_namespace(topic, self.options.namespace), expression, is_sql92=is_sql92)
        if self._is_running:
            self._instance.keep(self._instance.send_heartbeats())

    def _subscribe(self, topic: str, expression: str, *, is_sql92: bool = False) -> None:
        make = consuming.subscribe_by_sql if is_sql92 else consuming.subscribe
        self._subscriptions[topic] = make(topic, expression, self._clock())
