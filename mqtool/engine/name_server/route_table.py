"""Which brokers there are, and which topics each of them serves.

(RocketMQ: ``RouteInfoManager``.)
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from mqtool.errors import LimitError
from mqtool.formats.bodies import BrokerData, ClusterInfo, QueueData, Registration, TopicRoute
from mqtool.formats.codes import Perm
from mqtool.formats.config_tables import DataVersion, TopicConfig
from mqtool.formats.peer import Peer

MASTER_ID = 0
SILENCE_MS = 120_000
"""How long a broker may be silent before it is forgotten, unless it says another time itself."""

MAX_BROKERS = 1000
MAX_ENTRIES = 200_000
"""Pairs of a topic and a broker that serves it."""
MAX_NAME = 255
"""Characters of a name or an address."""
MAX_FILTER_SERVERS = 64

BrokerKey = tuple[str, str]
"""Cluster and address of a broker."""


@dataclass(slots=True)
class LiveBroker:
    """A broker that has registered and is not forgotten."""

    peer: Peer
    last_heard: int  # ms
    silence_ms: int
    version: DataVersion
    ha_address: str


class RouteTable:
    """The brokers, their topics and how lately each was heard of; ``now`` is in ms.

    Topics come with registrations and stay until the last broker that serves them has gone or they are deleted: a
    registration often names only the topic that has changed.
    """

    def __init__(self) -> None:
        self._topics: dict[str, dict[str, QueueData]] = {}  # by topic and broker name
        self._served: dict[str, set[str]] = {}  # topics, by broker name
        self._count = 0  # of pairs of them
        self._brokers: dict[str, BrokerData] = {}
        self._clusters: dict[str, set[str]] = {}  # names of brokers
        self._live: dict[BrokerKey, LiveBroker] = {}
        self._filter_servers: dict[BrokerKey, list[str]] = {}
        self._digests: dict[BrokerKey, bytes] = {}
        """Of the last registrations, while nothing else has changed the topics of the broker."""

    # Brokers

    def register(
        self,
        broker: BrokerData,
        broker_id: int,
        live: LiveBroker,
        registration: Registration,
        *,
        delete_others: bool = False,
        is_limited: bool = True,
        digest: bytes = b"",
    ) -> bool:
        """Take a registration in; ``broker`` has just the address under ``broker_id``.

        ``delete_others`` drops topics that a registration of more than one topic does not name; ``digest`` is that of
        the request, for ``register_again``. Returns False, and takes nothing in, where another broker holds the id
        with newer tables, or the first word of a broker is of a single topic: its full list comes soon.

        Raises:
            LimitError: there are too many brokers or topics, or a name is too long; nothing is taken in.
        """
        address = broker.addresses[broker_id]
        key = broker.cluster, address
        known = self._brokers.get(broker.broker_name)
        addresses = {} if known is None else {id_: at for id_, at in known.addresses.items() if at != address}
        rival = self._live.get((broker.cluster, addresses.get(broker_id, "")))
        if rival and rival.version.state_version > registration.version.state_version:
            return False
        if is_limited:
            self._check(broker, live, registration)
        is_new = known is None or broker_id not in known.addresses
        if is_new and len(registration.topics) == 1:
            return False
        if known is not None and known.cluster != broker.cluster:
            self._leave_cluster(known)
            self._forget_live((known.cluster, address))
        self._clusters.setdefault(broker.cluster, set()).add(broker.broker_name)
        broker.addresses = addresses | {broker_id: address}
        self._brokers[broker.broker_name] = broker

        changed = self.version(key) != registration.version
        self._live[key] = live
        if registration.filter_servers:
            self._filter_servers[key] = registration.filter_servers
        else:
            self._filter_servers.pop(key, None)
        if broker_id == MASTER_ID:
            if delete_others and len(registration.topics) > 1 and not registration.has_mappings:
                self._drop_queues(broker.broker_name, lambda topic: topic not in registration.topics)
            name, kinds = broker.broker_name, _QueueKinds(broker.broker_name)
            for topic, config in registration.topics.items():
                # Versions that did not change leave alone what was changed here, a wiped permission to write.
                if name not in (queues := self._topics.get(topic, {})):
                    self._put(topic, kinds[_kind(config)])
                elif is_new or changed:
                    queues[name] = kinds[_kind(config)]
        if digest:
            self._digests[key] = digest
        else:
            self._digests.pop(key, None)
        return True

    def register_again(self, broker: BrokerData, peer: Peer, now: int, silence_ms: int, digest: bytes) -> bool:
        """Note that a broker registers by the same request as last time; return False if that may change anything."""
        [(broker_id, address)] = broker.addresses.items()
        key, known = (broker.cluster, address), self._brokers.get(broker.broker_name)
        live = self._live.get(key)
        if live is None or known is None or self._digests.get(key) != digest:
            return False
        if known.addresses.get(broker_id) != address or replace(broker, addresses=known.addresses) != known:
            return False
        live.peer, live.last_heard, live.silence_ms = peer, now, silence_ms
        return True

    def _forget_digests(self, broker_name: str) -> None:
        if broker := self._brokers.get(broker_name):
            for address in broker.addresses.values():
                self._digests.pop((broker.cluster, address), None)

    def _check(self, broker: BrokerData, live: LiveBroker, registration: Registration) -> None:
        """Check that there is room for a registration; raises ``LimitError``."""
        names = (broker.cluster, broker.broker_name, live.ha_address, *broker.addresses.values())
        if max(map(len, (*names, *registration.topics, *registration.filter_servers))) > MAX_NAME:
            raise LimitError(f"names and addresses have at most {MAX_NAME} characters")
        if len(registration.filter_servers) > MAX_FILTER_SERVERS:
            raise LimitError(f"a broker has at most {MAX_FILTER_SERVERS} filter servers")
        is_known = broker.broker_name in self._brokers
        if len(self._live) >= MAX_BROKERS or (not is_known and len(self._brokers) >= MAX_BROKERS):
            for address in broker.addresses.values():
                if not is_known or (broker.cluster, address) not in self._live:
                    raise LimitError(f"there are already {MAX_BROKERS:,} brokers, the maximum")
        self._check_entries(sum(broker.broker_name not in self._topics.get(topic, ()) for topic in registration.topics))

    def _check_entries(self, new: int) -> None:
        if self._count + new > MAX_ENTRIES:
            raise LimitError(f"brokers serve {self._count:,} topics, and the maximum is {MAX_ENTRIES:,}")

    def unregister(self, cluster: str, address: str, broker_name: str) -> None:
        """Forget a broker, and the topics that none is left to serve."""
        self._forget_address(broker_name, address)
        if not any(address in broker.addresses.values() for broker in self._brokers.values()):
            self._forget_live((cluster, address))

    def _forget_address(self, broker_name: str, address: str) -> None:
        broker = self._brokers.get(broker_name)
        if broker is None:
            return
        broker.addresses = {id_: at for id_, at in broker.addresses.items() if at != address}
        if broker.addresses:
            return
        del self._brokers[broker_name]
        self._leave_cluster(broker)
        topics = self._served.pop(broker_name, ())
        self._count -= len(topics)
        for topic in topics:
            queues = self._topics[topic]
            del queues[broker_name]
            if not queues:
                del self._topics[topic]

    def _leave_cluster(self, broker: BrokerData) -> None:
        names = self._clusters.get(broker.cluster, set())
        names.discard(broker.broker_name)
        if not names:
            self._clusters.pop(broker.cluster, None)

    def _forget_live(self, key: BrokerKey) -> None:
        self._live.pop(key, None)
        self._filter_servers.pop(key, None)
        self._digests.pop(key, None)

    def drop_peer(self, peer: Peer) -> None:
        """Forget the brokers that registered over a connection."""
        self._drop([key for key, live in self._live.items() if live.peer is peer])

    def expire(self, now: int) -> None:
        """Forget the brokers that have been silent for too long."""
        self._drop([key for key, live in self._live.items() if live.last_heard + live.silence_ms < now])

    def heard_all(self, now: int) -> None:
        """Note that all brokers are still there: the time has jumped, and none of them could say so."""
        for live in self._live.values():
            live.last_heard = now

    def heard(self, key: BrokerKey, now: int, silence_ms: int | None = None) -> None:
        """Note that a broker, if it is known, has just been heard of."""
        if live := self._live.get(key):
            live.last_heard = now
            live.silence_ms = silence_ms or live.silence_ms

    def version(self, key: BrokerKey) -> DataVersion | None:
        """Return the version of the tables that a broker registered."""
        live = self._live.get(key)
        return None if live is None else live.version

    def master(self, cluster: str, broker_name: str) -> tuple[str, str] | None:
        """Return address and replication address of the master of a name, where it is there."""
        broker = self._brokers.get(broker_name)
        address = broker and broker.addresses.get(MASTER_ID)
        live = address and self._live.get((cluster, address))
        return (address, live.ha_address) if address and live else None

    def broker(self, broker_name: str) -> BrokerData | None:
        """Return the brokers that share a name."""
        return self._brokers.get(broker_name)

    def cluster_info(self) -> ClusterInfo:
        """Return all brokers and clusters, in order of name."""
        return ClusterInfo(
            dict(sorted(self._brokers.items())),
            {cluster: sorted(names) for cluster, names in sorted(self._clusters.items())},
        )

    # Topics

    def route(self, topic: str) -> TopicRoute | None:
        """Return who serves a topic, None if nobody does."""
        queues = [queue for _, queue in sorted(self._topics.get(topic, {}).items())]
        brokers = [self._brokers[queue.broker_name] for queue in queues if queue.broker_name in self._brokers]
        if not brokers:
            return None
        addresses = {(broker.cluster, address): address for broker in brokers for address in broker.addresses.values()}
        servers = {
            address: self._filter_servers[key] for key, address in addresses.items() if key in self._filter_servers
        }
        return TopicRoute(queues, brokers, filter_servers=servers)

    def topics(self) -> list[str]:
        """Return the names of all topics."""
        return [*self._topics]

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """Return the topics that brokers of a cluster serve."""
        names = self._clusters.get(cluster, set())
        return [topic for topic, queues in self._topics.items() if not names.isdisjoint(queues)]

    def topics_by_flag(self, wanted: Callable[[int], bool]) -> list[str]:
        """Return the topics whose sys flag, as one of its brokers has it, is wanted."""
        return [topic for topic, queues in self._topics.items() if wanted(next(iter(queues.values())).topic_sys_flag)]

    def add_queues(self, topic: str, queues: Iterable[QueueData]) -> None:
        """Note how brokers serve a topic; those that are not registered are skipped; raises ``LimitError``."""
        if len(topic) > MAX_NAME:
            raise LimitError(f"names have at most {MAX_NAME} characters")
        for queue in queues:
            if queue.broker_name in self._brokers:
                self._check_entries(queue.broker_name not in self._topics.get(topic, ()))
                self._put(topic, queue)
                self._forget_digests(queue.broker_name)

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Forget a topic, or that the brokers of one cluster serve it."""
        names = None if cluster is None else self._clusters.get(cluster, set())
        for name in [name for name in self._topics.get(topic, ()) if names is None or name in names]:
            self._drop_queue(topic, name)

    def set_writable(self, broker_name: str, writable: bool) -> int:
        """Allow or forbid writing to all topics of a broker until it says otherwise; return how many these are."""
        topics, write = self._served.get(broker_name, ()), int(Perm.WRITE)
        changed: dict[tuple[int, ...], QueueData] = {}  # nearly all are alike
        for topic in topics:
            queues = self._topics[topic]
            queue = queues[broker_name]
            if bool(queue.perm & write) != writable:
                kind = queue.read_queue_count, queue.write_queue_count, queue.perm, queue.topic_sys_flag
                if kind not in changed:
                    changed[kind] = queue._replace(perm=queue.perm ^ write)
                queues[broker_name] = changed[kind]
        return len(topics)

    def _put(self, topic: str, queue: QueueData) -> None:
        queues = self._topics.setdefault(topic, {})
        self._count += queue.broker_name not in queues
        queues[queue.broker_name] = queue
        self._served.setdefault(queue.broker_name, set()).add(topic)

    def _drop(self, keys: list[BrokerKey]) -> None:
        names: dict[str, list[str]] = {}  # of brokers, by address
        for broker in self._brokers.values() if keys else ():
            for address in broker.addresses.values():
                names.setdefault(address, []).append(broker.broker_name)
        for key in keys:
            _, address = key
            for name in names.get(address, ()):
                self._forget_address(name, address)
            self._forget_live(key)  # also of a broker that has another address now

    def _drop_queues(self, broker_name: str, unwanted: Callable[[str], bool]) -> None:
        for topic in [topic for topic in self._served.get(broker_name, ()) if unwanted(topic)]:
            self._drop_queue(topic, broker_name)

    def _drop_queue(self, topic: str, broker_name: str) -> None:
        self._forget_digests(broker_name)
        del self._topics[topic][broker_name]
        if not self._topics[topic]:
            del self._topics[topic]
        self._served[broker_name].discard(topic)
        if not self._served[broker_name]:
            del self._served[broker_name]
        self._count -= 1


Kind = tuple[int, int, int, int]


def _kind(config: TopicConfig) -> Kind:
    return config.read_queue_count, config.write_queue_count, config.perm, config.sys_flag


class _QueueKinds(dict[Kind, QueueData]):
    """How a broker serves topics, made once for all topics that are alike: nearly all are."""

    def __init__(self, broker_name: str) -> None:
        self._broker_name = broker_name

    def __missing__(self, kind: Kind) -> QueueData:
        queue = self[kind] = QueueData(self._broker_name, *kind)
        return queue
