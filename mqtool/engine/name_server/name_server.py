"""A name server: what it does for brokers, clients and administrators, on plain values; doors know the wire.

(RocketMQ: ``DefaultRequestProcessor``, ``ClientRequestProcessor``.)
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from mqtool.engine.intervals import is_time
from mqtool.engine.name_server.kv_configs import KvConfigs
from mqtool.engine.name_server.refusal import NameServerReason, NameServerRefusedError
from mqtool.engine.name_server.route_table import SILENCE_MS, LiveBroker, RouteTable
from mqtool.engine.name_server.settings import NameServerSettings
from mqtool.errors import UsageError
from mqtool.formats.bodies import BrokerData, QueueData, Registration, TopicRoute
from mqtool.formats.codes import TopicSysFlag
from mqtool.formats.config_tables import DataVersion
from mqtool.formats.peer import Peer

ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"
_PROTECTED = ("configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome")
"""Settings that no request may change: a path in them would be a way to write files."""
_UNIT, _UNIT_SUB = int(TopicSysFlag.UNIT), int(TopicSysFlag.UNIT_SUB)


class Registering(NamedTuple):
    """A broker that makes itself known."""

    broker_name: str
    address: str
    cluster: str
    broker_id: int  # 0: a master
    ha_address: str = ""  # where slaves copy from
    silence_ms: int | None = None  # after which it is forgotten, None: as usual
    acts_as_master: bool = False  # a slave of it may


class MasterAddress(NamedTuple):
    """Where the master of a slave is."""

    address: str
    ha_address: str


class Registered(NamedTuple):
    """What a broker learns when it has made itself known."""

    master: MasterAddress | None  # of a slave, where it is there
    order_config: Mapping[str, str] | None


class NameServer:
    """The rules of a name server; what they need of the outside is the time in ms.

    Routes and brokers live in memory only and come back with the next registrations; the kv config is kept in the file
    ``kvConfigPath`` where that is set.
    """

    def __init__(self, settings: NameServerSettings, now: int) -> None:
        """Begin with no brokers.

        Raises:
            FormatError: the file of the kv config is none.
        """
        self.settings = settings
        self.routes = RouteTable()
        self.kv = KvConfigs(settings.kv_config_path)
        self._started = now
        self._next_scan = now + settings.scan_interval_ms

    def closed(self, peer: Peer) -> None:
        """Forget the brokers of a connection that has ended."""
        self.routes.drop_peer(peer)

    def tick(self, now: int) -> None:
        """Forget the brokers that are silent."""
        interval = self.settings.scan_interval_ms
        if is_time(self._next_scan, interval, now):
            self._next_scan = now + interval
            self.routes.expire(now)

    def next_tick(self) -> int:
        """Return when ``tick`` has something to do."""
        return self._next_scan

    # Brokers

    def register(
        self,
        broker: Registering,
        registration: Registration,
        peer: Peer,
        now: int,
        *,
        is_own: bool = False,
        digest: bytes = b"",
    ) -> Registered:
        """Take a broker's registration in; ``digest`` is for ``register_again``.

        Raises:
            NameServerRefusedError: it does not count.
            LimitError: there are too many already; one of the same process (``is_own``) always has room.
        """
        name, address, cluster, broker_id, ha_address, silence_ms, acts_as_master = broker
        data = BrokerData(cluster, name, {broker_id: address}, acts_as_master)
        live = LiveBroker(peer, now, silence_ms or SILENCE_MS, registration.version, ha_address)
        delete_others = self.settings.delete_topic_with_registration
        if not self.routes.register(
            data,
            broker_id,
            live,
            registration,
            delete_others=delete_others,
            is_limited=not is_own,
            digest=self._kind_of(digest),
        ):
            raise NameServerRefusedError(NameServerReason.NOT_POSSIBLE, "register broker failed")
        return self._registered(broker)

    def register_again(self, broker: Registering, peer: Peer, now: int, digest: bytes) -> Registered | None:
        """Take in a registration with the same body as the last one, by its digest.

        Returns None where it may change anything: then its body has to be read. Most change nothing, and reading the
        body of a broker with many topics takes most of the time of a registration.
        """
        data = BrokerData(broker.cluster, broker.broker_name, {broker.broker_id: broker.address}, broker.acts_as_master)
        silence_ms = broker.silence_ms or SILENCE_MS
        is_same = self.routes.register_again(data, peer, now, silence_ms, self._kind_of(digest))
        return self._registered(broker) if is_same else None

    def _kind_of(self, digest: bytes) -> bytes:
        """Return a digest that also tells by which setting the registration is taken in."""
        return digest and digest + bytes([self.settings.delete_topic_with_registration])

    def _registered(self, broker: Registering) -> Registered:
        name, cluster, broker_id = broker.broker_name, broker.cluster, broker.broker_id
        master = self.routes.master(cluster, name) if broker_id else None
        order = self.kv.of(ORDER_NAMESPACE) if self.settings.return_order_config else None
        return Registered(MasterAddress(*master) if master else None, order)

    def check_version(
        self, cluster: str, address: str, version: DataVersion | None, now: int
    ) -> tuple[bool, DataVersion | None]:
        """Return whether a broker had better register again, and which version of its tables is known.

        Where it need not, that is a sign of life.
        """
        known = self.routes.version((cluster, address))
        is_changed = known is None or known != version
        if not is_changed:
            self.routes.heard((cluster, address), now)
        return is_changed, known

    def members(self, cluster: str, broker_name: str) -> dict[int, str]:
        """Return the addresses of the brokers of a name by id."""
        broker = self.routes.broker(broker_name)
        return broker.addresses if broker and broker.cluster == cluster else {}

    # Topics

    def route(self, topic: str, now: int) -> TopicRoute:
        """Return who serves a topic.

        Raises:
            NameServerRefusedError: nobody does, or it is too early to say.
        """
        settings = self.settings
        if settings.wait_for_service and now - self._started < settings.wait_seconds * 1000:
            raise NameServerRefusedError(NameServerReason.NOT_POSSIBLE, "name server not ready")
        route = self.routes.route(topic)
        if route is None:
            raise NameServerRefusedError(
                NameServerReason.NO_TOPIC, f"No topic route info in name server for the topic: {topic}"
            )
        if settings.order_message_enabled:
            route.order_config = self.kv.get(ORDER_NAMESPACE, topic)
        return route

    def topics(self) -> list[str]:
        """Return the names of all topics; raises ``NameServerRefusedError`` where that is switched off."""
        if not self.settings.all_topic_list_enabled:
            raise NameServerRefusedError(NameServerReason.NOT_POSSIBLE, "disable")
        return self.routes.topics()

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """Return the topics of a cluster; raises ``NameServerRefusedError`` where lists are switched off."""
        self._check_lists()
        return self.routes.topics_of_cluster(cluster)

    def system_topics(self) -> tuple[list[str], str | None]:
        """Return the topics that clusters and brokers are named by, and the address of a broker, if there is one.

        Raises:
            NameServerRefusedError: lists are switched off.
        """
        self._check_lists()
        info = self.routes.cluster_info()
        names = [name for cluster, brokers in info.clusters.items() for name in (cluster, *brokers)]
        addresses = (address for broker in info.brokers.values() for address in broker.addresses.values())
        return names, next(addresses, None)

    def unit_topics(self) -> list[str]:
        """Return the topics of units; raises ``NameServerRefusedError`` where lists are switched off."""
        return self._topics_by_flag(lambda flag: bool(flag & _UNIT))

    def unit_sub_topics(self) -> list[str]:
        """Return the topics that units subscribe to; raises ``NameServerRefusedError`` where lists are switched off."""
        return self._topics_by_flag(lambda flag: bool(flag & _UNIT_SUB))

    def unit_sub_only_topics(self) -> list[str]:
        """Return those of them that are of no unit; raises ``NameServerRefusedError`` where lists are switched off."""
        return self._topics_by_flag(lambda flag: flag & (_UNIT | _UNIT_SUB) == _UNIT_SUB)

    def _topics_by_flag(self, wanted: Callable[[int], bool]) -> list[str]:
        self._check_lists()
        return self.routes.topics_by_flag(wanted)

    def _check_lists(self) -> None:
        if not self.settings.topic_list_enabled:
            raise NameServerRefusedError(NameServerReason.NOT_POSSIBLE, "disable")

    def delete_topic(self, topic: str, cluster: str | None) -> None:
        """Forget a topic, or that the brokers of one cluster serve it."""
        self.routes.delete_topic(topic, cluster)

    def register_topic(self, topic: str, queues: Iterable[QueueData]) -> None:
        """Note how brokers serve a topic.

        Raises:
            LimitError: there are too many.
        """
        self.routes.add_queues(topic, queues)

    # Settings

    def update_settings(self, changes: Mapping[str, str]) -> None:
        """Change settings, all or none.

        Raises:
            NameServerRefusedError: one must not be changed so, has no effect here, or makes no sense.
        """
        if any(name in changes for name in _PROTECTED):
            raise NameServerRefusedError(NameServerReason.NOT_ALLOWED, "Can not update config in black list.")
        try:
            settings, unknown = self.settings.updated(changes)
        except UsageError as error:
            raise NameServerRefusedError(NameServerReason.NOT_POSSIBLE, str(error)) from None
        if unknown:
            raise NameServerRefusedError(
                NameServerReason.NOT_POSSIBLE, f"without effect here: {', '.join(sorted(unknown))}"
            )
        self.settings = settings
