"""The door of a broker for clients of Apache Pulsar: how each command is handled and answered.

(Rules: pulsar.md 3, 4. Pulsar: ``ServerCnx``.)
"""

import heapq
import itertools
import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from mqtool.engine.broker.acl import Need
from mqtool.engine.broker.door import Door
from mqtool.engine.broker.group_commit import Safety
from mqtool.engine.broker.limits import check_room
from mqtool.engine.broker.operations.refusal import OperationRefusedError as NotDoneError
from mqtool.engine.broker.operations.send import NewTopic
from mqtool.engine.broker.settings import Role
from mqtool.engine.intervals import is_time
from mqtool.engine.pulsar.entries import (
    ToStore,
    batch_body,
    is_followed_by_chunks,
    metadata_of,
    signed,
    to_store,
)
from mqtool.engine.pulsar.filters import EntryFilter, filter_of
from mqtool.engine.pulsar.frames import ChecksumError, Command, crc32c
from mqtool.engine.pulsar.gauges import pulsar_gauges
from mqtool.engine.pulsar.limits import (
    MAX_CLIENTS,
    MAX_NAME,
    MAX_OF_CONNECTION,
    MAX_OF_WISHES,
    MAX_RANGES,
    MAX_WAITING,
    MAX_WATCHED,
    MAX_WATCHERS,
    check_list,
)
from mqtool.engine.pulsar.names import PulsarTopicName, escape, rocketmq_topic
from mqtool.engine.pulsar.producers import Access, PulsarProducer, SendReceipt
from mqtool.engine.pulsar.refusal import PulsarError, PulsarRefusedError
from mqtool.engine.pulsar.schemas import parse_version, schema_of, version_bytes
from mqtool.engine.pulsar.session import NO_REQUEST, AwaitedPlace, Frame, Joined, PulsarSession, Watcher, bits_of
from mqtool.engine.pulsar.subscription import KeyPolicy, PulsarConsumer, SubscriptionType
from mqtool.engine.pulsar.tokens import TokenClaim, Tokens
from mqtool.engine.pulsar.topics import EARLIEST, Durable, PulsarTopics, QueueTopic
from mqtool.engine.pulsar.wire import command
from mqtool.engine.store.append_result import AppendResult, PutStatus
from mqtool.errors import FormatError, LimitError, MqtoolError
from mqtool.formats.new_message import BatchElement, NewMessage
from mqtool.formats.peer import Peer
from mqtool.formats.plain_acl import ANY, PUB, SUB
from mqtool.formats.topics import RETRY_PREFIX

if TYPE_CHECKING:
    from mqtool.engine.broker.broker import BrokerController

log = logging.getLogger(__name__)

_PING_MS, _GONE_MS, _PROBE_MS = 30_000, 60_000, 5_000
_REFRESH_MS = 10_000
"""How long a client has to replace its expired token."""
_REFRESH = b"PulsarAuthRefresh"
"""The challenge that makes clients fetch a new token."""
_SWEEP_MS = 1_000
_SET_BACK_MS = 1_000
"""A clock that goes back by more was set back."""
_NEWEST_PROTOCOL = 21
_LATEST = (1 << 63) - 1
_MAX_PATTERN = 1000
_FEW_DUES = 1000
_DISPATCHED_AT_ONCE, _LOOKED_AT_AT_ONCE = 8, 200
"""Subscriptions that have a turn in one call, and how many may be passed over because they have no consumers."""
_STORED_TOGETHER = 1 << 18
"""Bytes of bodies from which on messages are not stored together: they are in memory, decompressed."""
_NOTHING = ToStore([], False, 0, False)
_LIKE = NewTopic("", 1, False)
_new_tuple = tuple.__new__  # creates a named tuple in a third of the time
_OF_PARTITION = re.compile(r"-partition-\d+$")
_REQUESTS = frozenset(
    ("subscribe", "producer", "unsubscribe", "seek", "get_last_message_id", "get_topics", "watch_topics")
)


class BrokerUrls(NamedTuple):
    """Where clients find a broker; None where they cannot come so."""

    plain: str | None
    tls: str | None


class _Received(NamedTuple):
    """A message of a producer that is to be stored."""

    producer: PulsarProducer
    queue: QueueTopic
    body: Any  # of its command
    size: int  # of its payload
    stored: ToStore


class PulsarDoor(Door[Frame, PulsarSession]):
    """The door for Pulsar's commands. ``hang_up`` ends a connection; times are in ms."""

    def __init__(self, broker: "BrokerController", now: int) -> None:
        """Make the door of a broker.

        Raises:
            FormatError: the saved facts about Pulsar topics cannot be read.
            UsageError: access is controlled, and there is no key to authenticate clients.
            NotFoundError: the file of that key does not exist.
        """
        super().__init__(broker)
        self.topics = PulsarTopics(broker, now)
        self.hang_up: Callable[[Peer, str], None] = lambda _peer, _why: None
        self.port = self.tls_port = 0
        """Where clients come without TLS, and with it; 0 where they cannot."""
        self._now = now
        self._started = now
        self._access = broker.access
        self._checked_accounts = broker.access.acl if broker.access is not None else None
        self._tokens = Tokens(broker.settings) if broker.access is not None else None
        self.is_of_slave = broker.state.role is Role.SLAVE
        if self.is_of_slave:
            log.warning("pulsarPort: a slave does not serve Pulsar clients; they are refused until it is a master")
        self._names = itertools.count()
        self._ready: dict[Durable, None] = {}  # subscriptions that may have something to deliver, in turn
        self._arrived_at: set[QueueTopic] = set()  # queues of which all subscriptions may have something
        self._dues: dict[Durable, int] = {}  # when waiting subscriptions may deliver something
        self._next_dues: list[tuple[int, int, Durable]] = []  # a heap of these, and of outdated ones
        self._order = itertools.count()
        self._clients = 0  # producers and consumers
        self._awaited = 0  # requests that wait for the place of another client
        self._size_of_wishes = 0
        self._next_sweep = now + _SWEEP_MS
        self._watched_version = broker.topics.version
        self._watched_counts = {topic: config.read_queue_count for topic, config in broker.topics.configs.items()}
        self._watched = 0  # topics whose changes are sent to clients
        broker.on_arrival.append(self._arrived)
        broker.on_stop.append(self.topics.save_all)
        broker.further_gauges.append(lambda: pulsar_gauges(self.topics, broker.settings.cluster_name))
        broker.further_subscriptions.append(self.topics.states)
        broker.topics.on_delete.append(self._topics_deleted)
        broker.on_queues_deleted.append(self._queues_deleted)
        self._commands: dict[str, Callable[[PulsarSession, Any, int], None]] = {
            "ping": lambda session, _, __: session.say("pong"),
            "pong": lambda _, __, ___: None,
            "auth_response": self._refreshed,
            "partitioned_metadata": self._partitions,
            "lookup": self._lookup,
            "producer": self._producer,
            "close_producer": self._close_producer,
            "subscribe": self._subscribe,
            "flow": self._flow,
            "ack": self._ack,
            "redeliver": self._redeliver,
            "unsubscribe": self._unsubscribe,
            "seek": self._seek,
            "close_consumer": self._close_consumer,
            "get_last_message_id": self._last_message_id,
            "get_topics": self._topics_of,
            "consumer_stats": self._consumer_stats,
            "get_schema": self._schema,
            "get_or_create_schema": self._new_schema,
            **dict.fromkeys(
                ("new_transaction", "add_partitions", "add_subscriptions", "end_transaction", "connect_coordinator"),
                self._no_transactions,
            ),
            "watch_topics": self._watch_topics,
            "watch_topics_close": self._watch_no_more,
        }

    # For the server

    def new_session(self, peer: Peer) -> PulsarSession:
        """Return a session for a new connection."""
        return PulsarSession(peer, self.outbox, self._now)

    def take(self, received: Command, session: PulsarSession, now: int, more: Sequence[Command] = ()) -> None:
        """Handle a command, and if it is a message, more messages: together they are written at once.

        Raises:
            FormatError: it violates the protocol; the connection is to be closed.
        """
        self._time_is(now)
        session.last_heard = now
        session.pinged_at = None
        if session.probes:
            self._answered(session, now)
        name, body, _ = received
        if not session.is_connected and name not in ("connect", "ping", "pong"):
            raise FormatError(f"{name} before connect", 0)
        if self.is_of_slave:
            raise FormatError("a slave does not serve Pulsar clients", 0)
        if name == "connect":
            self._connect(session, body, now)
        elif name == "send":
            self._send_all(session, [received, *more], now)
        elif (do := self._commands.get(name)) is None:
            raise FormatError(f"{name} is not a command that clients send", 0)
        else:
            try:
                do(session, body, now)
            except (PulsarRefusedError, LimitError) as refused:
                if name not in _REQUESTS:
                    raise FormatError(str(refused), 0) from refused
                error = refused.error if isinstance(refused, PulsarRefusedError) else PulsarError.NOT_ALLOWED
                session.refuse(body.request_id, error, str(refused))

    def closed(self, peer: Peer, now: int) -> Iterable[tuple[Peer, Frame]]:
        """Remove the producers and consumers of a closed connection."""
        session = self._sessions.get(peer)
        if session is not None:
            for producer, queue in [*session.producers.values()]:
                queue.producers.remove(producer)
            self._clients -= len(session.producers)
            session.producers.clear()
            for joined in [*session.consumers.values()]:
                self._leave(session, joined, now)
            for place in [*session.awaited]:
                self._no_longer(session, place)
            for watcher_id in [*session.watchers]:
                self._watch_no_longer(session, watcher_id)
            self._answered(session, now)
        return super().closed(peer, now)

    def tick(self, now: int) -> Iterable[tuple[Peer, Frame]]:
        """Do what is due."""
        self._time_is(now)
        self.broker.tick(now)
        for durable in self.topics.tick(now):
            self._look_at(durable)
        if is_time(self._next_sweep, _SWEEP_MS, now):
            for durable in self.topics.no_longer_permitted():
                self._close_consumers(durable, now)
            self._check_accounts(now)
            self._sweep(now)
        self._dispatch(now)
        return self.outbox.take()

    def _time_is(self, now: int) -> None:
        """Note the time. If the clock was set back, what is due in a moment must not wait until it was due before."""
        if now < self._now - _SET_BACK_MS:
            self.topics.set_back(now)
            for queue in self.topics.queues.values():
                for durable in queue.subscriptions.values():
                    durable.subscription.set_back(now)
                    self._look_at(durable)
            for session in self._sessions.values():
                session.last_heard = min(session.last_heard, now)
                session.probed_at = session.probed_at and min(session.probed_at, now)
                session.challenged_at = session.challenged_at and min(session.challenged_at, now)
        self._now = now

    def next_tick(self, now: int) -> int:
        """Return when something is due."""
        if self._ready or self._arrived_at or self.outbox.waiting or now < self._now - _SET_BACK_MS:
            return now
        dues = [self.broker.next_tick(now)]
        if self._sessions:
            dues.append(self._next_sweep)
        if (due := self.topics.next_tick()) is not None:
            dues.append(due)
        if (due := self._first_due()) is not None:
            dues.append(due)
        return min(dues)

    def backed_up(self, session: PulsarSession, is_backed_up: bool) -> None:
        """Note that much of the data sent to a client waits to be read, or no longer does."""
        session.is_backed_up = is_backed_up
        if not is_backed_up:
            for joined in session.consumers.values():
                self._look_at(joined.durable)

    # Delivery

    def _arrived(
        self,
        topic: str,
        queue_id: int,
        next_offset: int,  # noqa: ARG002
        tags_codes: Sequence[int],  # noqa: ARG002
        now: int,  # noqa: ARG002
    ) -> None:
        queue = self.topics.queues.get((topic, queue_id))
        if queue is not None and queue.subscriptions:
            self._look_at_all_of(queue)

    def _look_at(self, durable: Durable) -> None:
        """Schedule the deliveries of a subscription for the next turn."""
        self._wake_up()
        self._ready[durable] = None

    def _look_at_all_of(self, queue: QueueTopic) -> None:
        """Schedule the deliveries of a queue for the next turn."""
        self._wake_up()
        self._arrived_at.add(queue)

    def _wake_up(self) -> None:
        if not self._ready and not self._arrived_at and self.outbox.on_first is not None:
            self.outbox.on_first()

    def _dispatch(self, now: int) -> None:
        while (first_due := self._first_due()) is not None and first_due <= now:
            _, _, durable = heapq.heappop(self._next_dues)
            del self._dues[durable]
            self._ready[durable] = None
        for queue in self._arrived_at:
            self._ready.update((durable, None) for durable in queue.subscriptions.values())
        self._arrived_at.clear()
        left = _DISPATCHED_AT_ONCE
        for durable in [*itertools.islice(self._ready, _LOOKED_AT_AT_ONCE)]:
            if not left:
                break
            del self._ready[durable]
            if durable.subscription.consumers:
                left -= 1
                self._dispatch_to(durable, now)
        if len(self._next_dues) > 2 * len(self._dues) + _FEW_DUES:  # most are outdated
            self._next_dues = [(due, next(self._order), durable) for durable, due in self._dues.items()]
            heapq.heapify(self._next_dues)

    def _dispatch_to(self, durable: Durable, now: int) -> None:
        subscription = durable.subscription
        try:
            if subscription.dispatch(now):
                self._ready[durable] = None
            self._tell_end(durable)
        except (MqtoolError, OSError) as error:  # of a disk, perhaps: other subscriptions continue
            log.warning("cannot deliver to subscription %s of %s: %s", subscription.name, subscription.topic, error)
        except Exception:
            log.exception("cannot deliver to subscription %s of %s", subscription.name, subscription.topic)
        next_due = subscription.next_tick()
        if next_due is None:
            self._dues.pop(durable, None)
        elif self._dues.get(durable) != next_due:
            self._dues[durable] = next_due
            heapq.heappush(self._next_dues, (next_due, next(self._order), durable))

    def _first_due(self) -> int | None:
        """Return when the first waiting subscription may deliver something."""
        dues = self._next_dues
        while dues and self._dues.get(dues[0][2]) != dues[0][0]:
            heapq.heappop(dues)
        return dues[0][0] if dues else None

    def _tell_end(self, durable: Durable) -> None:
        """Notify consumers if they have reached the end of a terminated topic."""
        if not self.broker.topics.is_terminated(durable.queue.place.topic) or durable.subscription.backlog:
            return
        for consumer in durable.subscription.consumers:
            receiver = consumer.receiver
            if isinstance(receiver, PulsarSession) and receiver.consumers[consumer.id].awaits_end:
                receiver.consumers[consumer.id].awaits_end = False
                receiver.say("reached_end", consumer_id=consumer.id)

    # Connections

    def _connect(self, session: PulsarSession, body: Any, now: int) -> None:
        if session.is_connected:
            raise FormatError("a second connect", 0)
        try:
            token = body.auth_data if body.auth_method_name == "token" else b""
            session.identity, session.expires_at = self.identify(_text(token), session.host, now)
        except PulsarRefusedError as refused:
            session.refuse(NO_REQUEST, refused.error, refused.text)
            session.expires_at = now  # the next sweep closes it, if it does not disconnect itself
            return
        session.is_connected = True
        session.is_cpp = body.client_version.startswith("Pulsar-CPP")
        session.can_refresh = body.feature_flags.supports_auth_refresh
        session.say(
            "connected",
            server_version="mqtool",
            protocol_version=min(body.protocol_version, _NEWEST_PROTOCOL),
            max_message_size=self.topics.most_message,
            feature_flags={
                "supports_topic_watchers": True,
                "supports_get_partitioned_metadata_without_auto_creation": True,
            },
        )

    def _token_expired(self, session: PulsarSession, now: int) -> None:
        """Ask a client for a new token, and close its connection if it cannot send one or has not done so in time."""
        if session.is_connected and session.can_refresh and session.challenged_at is None:
            session.challenged_at = now
            session.say(
                "auth_challenge",
                server_version="mqtool",
                challenge={"auth_method_name": "token", "auth_data": _REFRESH},
                protocol_version=_NEWEST_PROTOCOL,
            )
        elif session.challenged_at is None or now >= session.challenged_at + _REFRESH_MS:
            self.hang_up(session.peer, "its token is invalid or has expired")

    def _refreshed(self, session: PulsarSession, body: Any, now: int) -> None:
        token = body.response.auth_data if body.response.auth_method_name == "token" else b""
        claim = self.identify(_text(token), session.host, now)
        if claim.identity != session.identity:
            raise PulsarRefusedError(PulsarError.AUTHENTICATION, "The new token is of another account than the old one")
        session.expires_at, session.challenged_at = claim.expires_at, None

    def identify(self, token: str, host: str, now: int) -> TokenClaim:
        """Return the identity of a client from its host and its token, and until when that is valid.

        Raises:
            PulsarRefusedError: access is controlled, and such a client is not admitted.
        """
        if self._access is None or self._tokens is None or (not token and self._access.trusts(host)):
            return TokenClaim("", None)
        claim = self._tokens.claim(token, now)
        if claim.identity not in self._access.acl.accounts:
            raise PulsarRefusedError(PulsarError.AUTHENTICATION, f"There is no account {claim.identity}")
        return claim

    def allows(self, identity: str, host: str, topic: str, permission: int) -> bool:
        """Tell whether a client has a permission for a topic, or for a group by the name of its retry topic."""
        return self._access is None or self._access.allows(identity, host, Need(topic, permission))

    def may_see(self, identity: str, host: str, name: PulsarTopicName) -> bool:
        """Tell whether a client may produce to a topic or consume from it."""
        place = self.topics.place_of(name)
        return self.allows(identity, host, place.topic if place is not None else rocketmq_topic(name), ANY)

    def is_administrator(self, identity: str, host: str) -> bool:
        """Tell whether a client is an administrator."""
        if self._access is None or self._access.trusts(host):
            return True
        account = self._access.acl.accounts.get(identity)
        return account is not None and account.is_admin

    def _check(self, session: PulsarSession, topic: str, permission: int) -> None:
        if not self.allows(session.identity, session.host, topic, permission):
            raise PulsarRefusedError(PulsarError.AUTHORIZATION, f"{session.identity or 'This client'} may not do this")

    def _check_name(self, session: PulsarSession, name: PulsarTopicName, permission: int) -> None:
        place = self.topics.place_of(name)
        self._check(session, place.topic if place is not None else rocketmq_topic(name), permission)

    def _check_accounts(self, now: int) -> None:
        """Close the clients of accounts that are gone, and what others may no longer do, if accounts have changed."""
        if self._access is None or self._access.acl is self._checked_accounts:
            return
        self._checked_accounts = self._access.acl
        for session in [*self._sessions.values()]:
            identity, host = session.identity, session.host
            if not session.is_connected or self._access.trusts(host):
                continue
            if identity not in self._access.acl.accounts:
                self.hang_up(session.peer, "it has no account any more")
                continue
            for id, (producer, queue) in [*session.producers.items()]:  # noqa: A001
                if not self.allows(identity, host, queue.place.topic, PUB):
                    self._close(session, id, producer)
            for joined in [*session.consumers.values()]:
                group = RETRY_PREFIX + escape(joined.durable.subscription.name)
                if not all(self.allows(identity, host, topic, SUB) for topic in (joined.queue.place.topic, group)):
                    self._send_away(session, joined, now)

    def _sweep(self, now: int) -> None:
        """Ping silent clients, and close the connections of those that stay silent."""
        self._next_sweep = now + _SWEEP_MS
        self._tell_watchers()
        for session in [*self._sessions.values()]:
            silent = now - session.last_heard
            if session.expires_at is not None and now >= session.expires_at:
                self._token_expired(session, now)
            elif silent >= _GONE_MS:
                self.hang_up(session.peer, "silent for a minute")
            elif session.probed_at is not None and now >= session.probed_at + _PROBE_MS:
                self.hang_up(session.peer, "it does not answer, and another client is waiting for its place")
            elif silent >= _PING_MS and session.pinged_at is None:
                session.pinged_at = now
                session.say("ping")

    def _probe(
        self, holder: PulsarSession, asker: PulsarSession, place: AwaitedPlace, then: Callable[[int], None], now: int
    ) -> None:
        """Call a function for a client that wants the place of another, once that one has answered or is gone.

        A client that does not answer is disconnected.

        Raises:
            PulsarRefusedError: too many requests wait already.
        """
        if holder is asker or holder.peer not in self._sessions:
            then(now)
            return
        if self._awaited >= MAX_WAITING:
            raise PulsarRefusedError(PulsarError.SERVICE_NOT_READY, "Too many requests wait for other clients")
        self._awaited += 1
        asker.awaited[place] = holder
        holder.probes[asker.peer, place] = then
        if holder.probed_at is None:
            holder.probed_at = now
            holder.say("ping")

    def _answered(self, session: PulsarSession, now: int) -> None:
        probes, session.probes = session.probes, {}
        session.probed_at = None
        for (peer, place), then in probes.items():
            asker = self._sessions.get(peer)
            if asker is not None and asker.awaited.pop(place, None) is not None:
                self._awaited -= 1
                then(now)

    def _no_longer(self, session: PulsarSession, place: AwaitedPlace) -> None:
        """Stop a producer or consumer from waiting for the place of another client."""
        if (holder := session.awaited.pop(place, None)) is not None:
            self._awaited -= 1
            holder.probes.pop((session.peer, place), None)

    # Topics

    def _partitions(self, session: PulsarSession, body: Any, now: int) -> None:  # noqa: ARG002
        try:
            name = self.topics.parse(body.topic)
            self._check_name(session, name, ANY)
            count = self.topics.partition_count(name)
            if count is None and not body.metadata_auto_creation_enabled:
                raise PulsarRefusedError(PulsarError.TOPIC_NOT_FOUND, "")
        except PulsarRefusedError as refused:
            session.say(
                "partitioned_metadata_response",
                request_id=body.request_id,
                response=1,
                error=int(refused.error),
                message=refused.text,
            )
        else:
            session.say("partitioned_metadata_response", partitions=count or 0, request_id=body.request_id, response=0)

    def _lookup(self, session: PulsarSession, body: Any, now: int) -> None:  # noqa: ARG002
        try:
            self._check_name(session, self.topics.parse(body.topic), ANY)
        except PulsarRefusedError as refused:
            session.say(
                "lookup_response",
                request_id=body.request_id,
                response=2,
                error=int(refused.error),
                message=refused.text,
            )
            return
        urls = self.urls(session.reached_host)
        session.say(
            "lookup_response",
            brokerServiceUrl=urls.plain,
            brokerServiceUrlTls=urls.tls,
            response=1,
            request_id=body.request_id,
            authoritative=True,
            proxy_through_service_url=True,
        )

    def urls(self, host: str) -> BrokerUrls:
        """Return where clients find the broker that have reached it, or its pages, at a host.

        The address to be announced (``pulsarAdvertised``) stands for the port without TLS, or for the only one; that
        for TLS is then on the same host.
        """
        advertised = self.broker.settings.pulsar_advertised
        host = advertised.rpartition(":")[0] or host
        addresses = {port: f"{host}:{port}" for port in (self.port, self.tls_port) if port}
        if advertised:
            addresses[self.port or self.tls_port] = advertised
        plain, tls = addresses.get(self.port), addresses.get(self.tls_port)
        return BrokerUrls(plain and f"pulsar://{plain}", tls and f"pulsar+ssl://{tls}")

    def _topics_of(self, session: PulsarSession, body: Any, now: int) -> None:  # noqa: ARG002
        pattern = pattern_of(body.topics_pattern)
        topics = () if body.mode == 1 else self.broker.topics.configs
        names = _sorted(self._names_for(session, body.namespace, pattern, topics))
        digest = _digest_of(names)
        is_same = body.HasField("topics_hash") and body.topics_hash == digest
        session.say(
            "get_topics_response",
            request_id=body.request_id,
            topics=[] if is_same else names,
            filtered=pattern is not None,
            topics_hash=digest,
            changed=not is_same,
        )

    def _names_for(
        self, session: PulsarSession, namespace: str, pattern: re.Pattern[str] | None, topics: Iterable[str]
    ) -> dict[str, list[str]]:
        """Return the names of the topics that a client looks for and may see, by their RocketMQ topics.

        Raises:
            LimitError: there are too many.
        """
        names: dict[str, list[str]] = {}
        count = 0
        for topic, name in self.topics.topics_of(tuple(namespace.split("/", 1)), topics):
            if pattern is not None and not _is_meant(name, pattern):
                continue
            if self._access is None or self.allows(session.identity, session.host, topic, ANY):
                names[topic] = self.topics.full_names(topic, name)
                count += len(names[topic])
                check_list(count)
        return names

    def _watch_topics(self, session: PulsarSession, body: Any, now: int) -> None:  # noqa: ARG002
        pattern = pattern_of(body.topics_pattern)
        self._watch_no_longer(session, body.watcher_id)
        watcher = None
        if pattern is not None and len(body.namespace) <= 2 * MAX_NAME and len(session.watchers) < MAX_WATCHERS:
            self._tell_watchers()
            topics = self._names_for(session, body.namespace, pattern, self.broker.topics.configs)
            watcher = Watcher(body.namespace, pattern, topics)
        if watcher is None or self._watched + watcher.count > MAX_WATCHED:
            # The client also polls the topics from time to time.
            session.refuse(
                body.request_id,
                PulsarError.NOT_ALLOWED,
                "Watching this pattern is not supported: list the topics instead",
            )
            return
        session.watchers[body.watcher_id] = watcher
        self._watched += watcher.count
        names = _sorted(watcher.topics)
        digest = _digest_of(names)
        is_same = body.HasField("topics_hash") and body.topics_hash == digest
        session.say(
            "watch_topics_success",
            request_id=body.request_id,
            watcher_id=body.watcher_id,
            topic=[] if is_same else names,
            topics_hash=digest,
        )

    def _watch_no_more(self, session: PulsarSession, body: Any, now: int) -> None:  # noqa: ARG002
        self._watch_no_longer(session, body.watcher_id)
        session.say("success", request_id=body.request_id)

    def _watch_no_longer(self, session: PulsarSession, watcher_id: int) -> None:
        watcher = session.watchers.pop(watcher_id, None)
        if watcher is not None:
            self._watched -= watcher.count

    def _tell_watchers(self) -> None:
        """Send watchers the topics that are new and those that are gone."""
        broker_topics = self.broker.topics
        if self._watched_version == broker_topics.version:
            return
        self._watched_version = broker_topics.version
        before = self._watched_counts
        now = {topic: config.read_queue_count for topic, config in broker_topics.configs.items()}
        changed = {topic for topic, _ in before.items() ^ now.items()}
        self._watched_counts = now
        for session in self._sessions.values():
            for watcher_id, watcher in [*session.watchers.items()]:
                self._tell_watcher(session, watcher_id, watcher, changed)

    def _tell_watcher(self, session: PulsarSession, watcher_id: int, watcher: Watcher, changed: set[str]) -> None:
        there = [topic for topic in changed if topic in self.broker.topics.configs]
        self._watch_no_longer(session, watcher_id)
        try:
            new = self._names_for(session, watcher.namespace, watcher.pattern, there)
            gone = watcher.replace(changed, new)
            check_room(self._watched, watcher.count, MAX_WATCHED, "topics that clients watch")
        except LimitError:
            return  # the client polls the topics from time to time
        session.watchers[watcher_id] = watcher
        self._watched += watcher.count
        names = {*_sorted(new)}
        if names != gone:
            session.say(
                "watch_topics_update",
                watcher_id=watcher_id,
                new_topics=sorted(names - gone),
                deleted_topics=sorted(gone - names),
                topics_hash=_digest_of(_sorted(watcher.topics)),
            )

    def terminate(self, topic: str, now: int) -> None:
        """Let a RocketMQ topic accept no more messages; its Pulsar producers are closed, and new ones refused."""
        self.topics.terminate(topic, now)
        queues = self.topics.used_queues_of(topic)
        self._close_producers(queues)
        for queue in queues:
            self._look_at_all_of(queue)

    def _close_producers(self, queues: Collection[QueueTopic]) -> None:
        for queue in queues:
            for producer in queue.producers.everyone:
                self._close(producer.session, producer.id, producer)

    def _topics_deleted(self, topics: Collection[str], now: int) -> None:
        for topic in topics:
            self._topic_deleted(topic, now)

    def _topic_deleted(self, topic: str, now: int) -> None:
        self._close_clients(self.topics.delete_topic(topic, now), now)

    def _queues_deleted(self, topics: Collection[str]) -> None:
        """Let the queues of existing topics begin anew: they were deleted because they had no messages left."""
        for topic in topics:
            if topic in self.broker.topics.configs and not self.is_of_slave:
                self._close_clients(self.topics.restart(topic, self._now), self._now)

    def _close_clients(self, gone: Collection[QueueTopic], now: int) -> None:
        self._close_producers(gone)
        for queue in gone:
            for durable in [*queue.subscriptions.values()]:
                self._close_consumers(durable, now)

    # Producers

    def _producer(self, session: PulsarSession, body: Any, now: int) -> None:
        if (registered := session.producers.get(body.producer_id)) is not None:
            producer, queue = registered
            is_ready = queue.producers.by_name.get(producer.name) is producer
            self._producer_ready(session, body.request_id, producer, queue, is_ready=is_ready)
            return
        place = "producer", body.producer_id
        if place in session.awaited:
            raise PulsarRefusedError(PulsarError.SERVICE_NOT_READY, "Producer is already being created")
        self._check_room(len(session.producers) + len(session.awaited), "producers")
        if body.producer_access_mode not in iter(Access):
            raise FormatError(f"access mode {body.producer_access_mode}", 0)
        if body.topic_epoch > _LATEST:
            raise FormatError(f"topic epoch {body.topic_epoch}", 0)
        if len(body.producer_name) > MAX_NAME or len(body.initial_subscription_name) > MAX_NAME:
            raise PulsarRefusedError(PulsarError.NOT_ALLOWED, f"Names have at most {MAX_NAME} characters")
        self.broker.saves.begin_request()
        queue = self._open(session, body.topic, PUB, now)
        self._check_not_terminated(queue)
        if body.initial_subscription_name:
            self._check_name(session, self.topics.parse(body.topic), SUB)
            self._check(session, RETRY_PREFIX + escape(body.initial_subscription_name), SUB)
            self.topics.subscribe(queue, body.initial_subscription_name, queue.log.start, now, is_durable=True)
        name = body.producer_name or self._new_name()
        producer = PulsarProducer(session, body.producer_id, name, Access(body.producer_access_mode), body.epoch)
        if (schema := schema_of(body)) is not None:
            producer.schema_version = version_bytes(self.topics.register(queue.place.topic, schema))
        holder = queue.producers.by_name.get(name)
        if holder is not None and holder.session is not session:

            def then(now: int) -> None:
                self._again(
                    session,
                    body,
                    lambda: self._add_producer(session, body, producer, self._open(session, body.topic, PUB, now)),
                )

            body.ClearField("schema")
            body.DiscardUnknownFields()
            self._probe(holder.session, session, place, then, now)
            return
        self._add_producer(session, body, producer, queue)

    def _again(self, session: PulsarSession, body: Any, do: Callable[[], None]) -> None:
        """Run what had to wait for another client, and answer the request if it is refused."""
        if session.peer not in self._sessions:
            return
        try:
            self.broker.saves.begin_request()
            do()
        except (PulsarRefusedError, LimitError) as refused:
            error = refused.error if isinstance(refused, PulsarRefusedError) else PulsarError.NOT_ALLOWED
            session.refuse(body.request_id, error, str(refused))

    def _add_producer(self, session: PulsarSession, body: Any, producer: PulsarProducer, queue: QueueTopic) -> None:
        if body.producer_id in session.producers:
            raise PulsarRefusedError(PulsarError.SERVICE_NOT_READY, "Producer is already being created")
        self._check_not_terminated(queue)

        def ready() -> None:
            self._producer_ready(session, body.request_id, producer, queue)

        def owns() -> None:  # after it has waited
            self._when_saved(session, body.request_id, ready, self.broker.saves.changes)

        fenced = queue.producers.add(producer, body.topic_epoch if body.HasField("topic_epoch") else None, owns)
        session.producers[body.producer_id] = producer, queue
        self._clients += 1
        session.closed_producers.pop(body.producer_id, None)
        if fenced is None:
            self._producer_ready(session, body.request_id, producer, queue, is_ready=False)
            return
        for fenced_producer in fenced:
            self._close(fenced_producer.session, fenced_producer.id, fenced_producer)
        self._when_saved(session, body.request_id, ready)

    def _check_not_terminated(self, queue: QueueTopic) -> None:
        if self.broker.topics.is_terminated(queue.place.topic):
            raise PulsarRefusedError(PulsarError.TOPIC_TERMINATED, "Topic was already terminated")

    def _producer_ready(
        self,
        session: PulsarSession,
        request_id: int,
        producer: PulsarProducer,
        queue: QueueTopic,
        *,
        is_ready: bool = True,
    ) -> None:
        known = queue.deduplication
        session.say(
            "producer_success",
            request_id=request_id,
            producer_name=producer.name,
            last_sequence_id=known.highest_of(producer.name) if known is not None else -1,
            schema_version=producer.schema_version,
            topic_epoch=producer.topic_epoch,
            producer_ready=is_ready,
        )

    def _new_name(self) -> str:
        return f"{self.broker.settings.broker_name}-{self._started:x}-{next(self._names)}"

    def _close_producer(self, session: PulsarSession, body: Any, now: int) -> None:  # noqa: ARG002
        registered = session.producers.pop(body.producer_id, None)
        if registered is not None:
            self._clients -= 1
            registered[1].producers.remove(registered[0])
        self._no_longer(session, ("producer", body.producer_id))
        session.say("success", request_id=body.request_id)

    def _close(self, session: PulsarSession, id: int, producer: PulsarProducer) -> None:  # noqa: A002
        """Close a producer from this side: its client opens it anew, and resends messages without a receipt."""
        registered = session.producers.pop(id, None)
        if registered is not None:
            self._clients -= 1
            registered[1].producers.remove(producer)
            session.closed_producers[id] = None
            if len(session.closed_producers) > MAX_OF_CONNECTION:
                del session.closed_producers[next(iter(session.closed_producers))]
            session.say("close_producer", producer_id=id, request_id=NO_REQUEST)

    def _send_all(self, session: PulsarSession, commands: Sequence[Command], now: int) -> None:
        """Store messages in their order; single ones of a producer that follow one another in one write."""
        together: list[_Received] = []
        size = 0
        try:
            for _, body, payload in commands:
                registered = session.producers.get(body.producer_id)
                if registered is None and body.producer_id in session.closed_producers:
                    continue
                if registered is None or payload is None:
                    raise FormatError("a message without a producer, or without a payload", 0)
                producer, queue = registered
                if queue.producers.by_name.get(producer.name) is not producer:
                    raise FormatError("a message from a producer that is still waiting", 0)
                try:
                    stored, fault = to_store(payload, self.topics.most_body), None
                except FormatError as error:
                    stored, fault = _NOTHING, error
                is_alone = fault is not None or stored.is_batch or queue.deduplication is not None
                if together and (is_alone or together[0].producer is not producer or size >= _STORED_TOGETHER):
                    before, together, size = together, [], 0
                    self._store_all(session, before, now)
                received = _new_tuple(_Received, (producer, queue, body, len(payload), stored))
                if not is_alone:
                    together.append(received)
                    size += len(stored.records[0].body)
                elif fault is None:
                    self._store_alone(session, received, payload, now)
                else:
                    text = "Checksum failed on the broker" if isinstance(fault, ChecksumError) else str(fault)
                    self._send_error(session, body, text, PulsarError.CHECKSUM)
        finally:  # messages before a wrong one are valid
            if together:
                self._store_all(session, together, now)
            session.send_receipts()

    def _store_alone(self, session: PulsarSession, received: _Received, payload: bytes, now: int) -> None:
        """Store a message, or a batch, unless it has been sent before; and answer it."""
        producer, queue, body, *_ = received
        known = queue.deduplication
        if known is not None and body.is_chunk and is_followed_by_chunks(metadata_of(payload)):
            known = None  # all chunks of a message have one sequence id: the last one counts
        if known is not None and known.is_repeated(producer.name, signed(body.sequence_id)):
            self._receipt(session, producer, body, (EARLIEST, EARLIEST), self.broker.store.end_offset, now)
        elif self._store_all(session, [received], now) and known is not None:
            known.stored(producer.name, max(signed(body.sequence_id), signed(body.highest_sequence_id)))

    def _store_all(self, session: PulsarSession, together: Sequence[_Received], now: int) -> bool:
        """Store messages of one producer, answer them, and return whether all are stored."""
        producer, queue, *_ = together[0]
        try:
            results = self._store(session, together, now)
        except (NotDoneError, LimitError) as refused:
            for received in together:
                self._send_error(session, received.body, str(refused))
            return False
        are_stored = True
        for (_, _, body, size, _), result in zip(together, results, strict=True):
            if result.status is PutStatus.PUT_OK:
                queue.bytes_in += size
                place = queue.generation, result.queue_offset
                self._receipt(session, producer, body, place, result.flush_offset, now)
                continue
            are_stored = False
            if result.status is PutStatus.SERVICE_NOT_AVAILABLE:  # the client retries until the store accepts it
                log.warning("a message of %s was not accepted: %s", session.address, self.broker.store.refusal)
                self._close(session, producer.id, producer)
                break
            text = f"The message cannot be stored ({result.status}): it is too large, or its properties are"
            self._send_error(session, body, text)
        return are_stored

    def _receipt(
        self,
        session: PulsarSession,
        producer: PulsarProducer,
        body: Any,
        place: tuple[int, int],
        flush_offset: int,
        now: int,
    ) -> None:
        """Send a producer its receipt, after its earlier receipts and once the log is safe up to the message."""
        highest = body.highest_sequence_id if body.HasField("highest_sequence_id") else NO_REQUEST
        receipt = body.producer_id, body.sequence_id, highest, place
        flushes = self.broker.group_commit
        is_safe = flushes.is_safe(flush_offset)
        if is_safe and not producer.receipts:
            session.receipts.append(receipt)
            return
        waiting = SendReceipt(receipt, is_safe)
        producer.receipts.append(waiting)
        if not is_safe:

            def told(safety: Safety, now: int) -> None:  # noqa: ARG001
                self._told(session, producer, waiting, safety)

            flushes.wait(flush_offset, session, told, now)

    def _told(self, session: PulsarSession, producer: PulsarProducer, receipt: SendReceipt, safety: Safety) -> None:
        if producer.is_closed:
            return
        if safety is not Safety.SAFE:
            log.warning("a message of %s is %s: its producer should send it again", session.address, safety.value)
            self._close(session, producer.id, producer)
            return
        receipt.is_safe = True
        session.receipts += producer.safe_receipts()
        session.send_receipts()

    def _store(self, session: PulsarSession, together: Sequence[_Received], now: int) -> Sequence[AppendResult]:
        place, sends = together[0].queue.place, self.broker.sends
        run = NewMessage(place.topic, place.queue_id, b"", born_host=session.born_host)
        if together[0].stored.is_batch:
            stored = together[0].stored
            run.body, run.born_timestamp = batch_body(stored.records), stored.publish_time or now
            return [sends.send(run, _LIKE, now, is_batch=True).result]
        elements, are_plain = [], []
        for *_, (records, _, publish_time, is_plain) in together:
            elements.append(_new_tuple(BatchElement, (0, *records[0], publish_time or now)))
            are_plain.append(is_plain)
        return sends.send_each(run, elements, are_plain, _LIKE, now)

    def _send_error(self, session: PulsarSession, body: Any, text: str, error: PulsarError | None = None) -> None:
        """Refuse a message with an error on which clients give it up instead of resending it endlessly."""
        error = error or (PulsarError.CHECKSUM if session.is_cpp else PulsarError.NOT_ALLOWED)
        session.say(
            "send_error", producer_id=body.producer_id, sequence_id=body.sequence_id, error=int(error), message=text
        )

    # Consumers

    def _subscribe(self, session: PulsarSession, body: Any, now: int) -> None:
        if body.consumer_id in session.consumers:
            session.say("success", request_id=body.request_id)
            return
        place = "consumer", body.consumer_id
        if place in session.awaited:
            raise PulsarRefusedError(PulsarError.SERVICE_NOT_READY, "Consumer is already being created")
        self._check_room(len(session.consumers) + len(session.awaited), "consumers")
        if body.subType not in iter(SubscriptionType):
            raise FormatError(f"subscription type {body.subType}", 0)
        kind = SubscriptionType(body.subType)
        if not body.subscription:
            raise PulsarRefusedError(PulsarError.PRODUCER_BUSY, "Empty subscription name")
        if len(body.subscription) > MAX_NAME or len(body.consumer_name) > MAX_NAME:
            raise PulsarRefusedError(PulsarError.NOT_ALLOWED, f"Names have at most {MAX_NAME} characters")
        if body.read_compacted and kind not in (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER):
            raise PulsarRefusedError(PulsarError.NOT_ALLOWED, "readCompacted only allowed on failover or exclusive")
        meta = body.keySharedMeta
        if len(meta.hashRanges) > MAX_RANGES:
            raise PulsarRefusedError(PulsarError.CONSUMER_ASSIGN, f"A consumer has at most {MAX_RANGES:,} ranges")
        ranges = tuple((hash_range.start, hash_range.end) for hash_range in meta.hashRanges)
        policy = KeyPolicy(meta.keySharedMode == 1, ranges, meta.allowOutOfOrderDelivery)
        wanted = filter_of({_text(pair.key): _text(pair.value) for pair in body.subscription_properties})
        wanted.compiled()  # raises if it is refused
        if self._size_of_wishes + _size_of(policy, wanted) > MAX_OF_WISHES:
            raise PulsarRefusedError(
                PulsarError.NOT_ALLOWED,
                f"Filters and ranges of all consumers have more than {MAX_OF_WISHES:,} characters",
            )
        self.broker.saves.begin_request()
        queue = self._open(session, body.topic, SUB, now, create=body.force_topic_creation)
        self._check(session, RETRY_PREFIX + escape(body.subscription), SUB)
        if (schema := schema_of(body)) is not None:
            self.topics.register_reader(queue, schema)
        self.topics.check_permissions(queue, body.subscription, is_durable=body.durable)
        if body.durable:
            self.topics.check_group(queue, body.subscription)
        existing = self.topics.subscription(queue, body.subscription)
        if existing is not None:
            self._check_durable(existing, is_durable=body.durable)
            try:
                existing.subscription.check(kind, policy, wanted)
            except PulsarRefusedError as refused:
                holders = {consumer.receiver for consumer in existing.subscription.consumers}
                other_sessions = [
                    holder for holder in holders if isinstance(holder, PulsarSession) and holder is not session
                ]
                if not other_sessions:
                    raise

                def then(now: int) -> None:
                    def join() -> None:
                        again = self._open(session, body.topic, SUB, now)
                        self._join(session, body, kind, policy, wanted, again, now)

                    self._again(session, body, join)

                if refused.error in (PulsarError.CONSUMER_BUSY, PulsarError.CONSUMER_ASSIGN):
                    for field in ("schema", "subscription_properties", "keySharedMeta"):
                        body.ClearField(field)
                    body.DiscardUnknownFields()
                    if body.HasField("start_message_id"):
                        body.start_message_id.ClearField("ack_set")
                    self._probe(other_sessions[0], session, place, then, now)
                    return
                raise
        self._join(session, body, kind, policy, wanted, queue, now)

    def _join(
        self,
        session: PulsarSession,
        body: Any,
        kind: SubscriptionType,
        policy: KeyPolicy,
        wanted: EntryFilter,
        queue: QueueTopic,
        now: int,
    ) -> None:
        if body.consumer_id in session.consumers:
            raise PulsarRefusedError(PulsarError.SERVICE_NOT_READY, "Consumer is already being created")
        existing = self.topics.subscription(queue, body.subscription)
        if existing is not None:
            self._check_durable(existing, is_durable=body.durable)
        durable = existing or self.topics.subscribe(
            queue, body.subscription, self._first_offset(queue, body), now, is_durable=body.durable
        )
        self.topics.joined(durable)
        name = body.consumer_name or f"{session.peer.id:x}-{body.consumer_id:x}"
        consumer = PulsarConsumer(session, body.consumer_id, name, body.priority_level, policy, wanted)
        if kind in (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER) and body.HasField("consumer_epoch"):
            consumer.epoch = body.consumer_epoch
        joined = Joined(consumer, durable)
        session.consumers[body.consumer_id] = joined
        try:
            durable.subscription.add(consumer, kind, now)
        except PulsarRefusedError:
            del session.consumers[body.consumer_id]
            self.topics.left(durable, now)
            raise
        self._clients += 1
        self._size_of_wishes += _size_of(policy, wanted)

        def answer() -> None:
            session.say("success", request_id=body.request_id)
            joined.awaits_end = True
            self._look_at(durable)

        self._when_saved(session, body.request_id, answer)

    def _check_durable(self, existing: Durable, *, is_durable: bool) -> None:
        """Check that a reader does not move the position of consumers, or a consumer lose the one of a reader.

        Raises:
            PulsarRefusedError: it would.
        """
        if existing.is_durable != is_durable:
            kind = "Durable" if existing.is_durable else "NonDurable"
            raise PulsarRefusedError(PulsarError.NOT_ALLOWED, f"{kind} subscription with the same name already exists.")

    def _first_offset(self, queue: QueueTopic, body: Any) -> int:
        log = queue.log
        if body.start_message_rollback_duration_sec:
            return queue.offset_at(max(self._now - body.start_message_rollback_duration_sec * 1000, 0))
        if body.HasField("start_message_id"):
            return queue.offset_of(body.start_message_id.ledgerId, body.start_message_id.entryId)
        return log.start if body.initialPosition == 1 else log.end

    def _flow(self, session: PulsarSession, body: Any, now: int) -> None:  # noqa: ARG002
        if not body.messagePermits:
            raise FormatError("a flow command without permits", 0)
        if (joined := session.consumers.get(body.consumer_id)) is not None:
            joined.durable.subscription.flow(joined.consumer, body.messagePermits)
            self._look_at(joined.durable)

    def _ack(self, session: PulsarSession, body: Any, now: int) -> None:  # noqa: ARG002
        joined = session.consumers.get(body.consumer_id)
        if joined is None:
            return
        if body.ack_type not in (0, 1):
            raise FormatError(f"acknowledgement of type {body.ack_type}", 0)
        subscription, generation = joined.durable.subscription, joined.queue.generation
        is_cumulative = body.ack_type == 1
        if not is_cumulative or len(body.message_id) == 1:
            for id in body.message_id:  # noqa: A001
                if id.ledgerId != generation or id.entryId >= _LATEST:
                    continue
                left = bits_of(id.ack_set) if id.ack_set else None
                if is_cumulative:
                    subscription.ack_until(id.entryId, left)
                else:
                    subscription.ack(id.entryId, left)
        if body.HasField("request_id"):
            session.say("ack_response", consumer_id=body.consumer_id, request_id=body.request_id)
        self._look_at(joined.durable)

    def _redeliver(self, session: PulsarSession, body: Any, now: int) -> None:  # noqa: ARG002
        joined = session.consumers.get(body.consumer_id)
        if joined is None:
            return
        if body.HasField("consumer_epoch"):
            joined.consumer.epoch = body.consumer_epoch
        ids = [message_id.entryId for message_id in body.message_ids if message_id.ledgerId == joined.queue.generation]
        joined.durable.subscription.redeliver(joined.consumer, ids if body.message_ids else None)
        self._look_at(joined.durable)

    def _unsubscribe(self, session: PulsarSession, body: Any, now: int) -> None:
        joined = session.consumers.get(body.consumer_id)
        if joined is None:
            raise PulsarRefusedError(PulsarError.METADATA, "Consumer not found")
        other_consumers = [
            consumer for consumer in joined.durable.subscription.consumers if consumer is not joined.consumer
        ]
        if other_consumers and not body.force:
            raise PulsarRefusedError(PulsarError.METADATA, "Unconnected or shared consumer attempting to unsubscribe")
        self.broker.saves.begin_request()
        self._leave(session, joined, now)
        self.unsubscribe(joined.durable, now)
        self._when_saved(session, body.request_id, lambda: session.say("success", request_id=body.request_id))

    def _seek(self, session: PulsarSession, body: Any, now: int) -> None:
        joined = session.consumers.get(body.consumer_id)
        if joined is None:
            raise PulsarRefusedError(PulsarError.METADATA, "Consumer not found")
        left = None
        if body.HasField("message_id"):
            offset = joined.queue.offset_of(body.message_id.ledgerId, body.message_id.entryId)
            if body.message_id.ack_set and offset == body.message_id.entryId:
                left = joined.queue.left_of(offset, bits_of(body.message_id.ack_set))
        elif body.HasField("message_publish_time"):
            offset = joined.queue.offset_at(min(body.message_publish_time, _LATEST))
        else:
            raise PulsarRefusedError(PulsarError.METADATA, "Resetting a subscription requires a position or a time")
        if joined.durable.is_durable:
            self.topics.check_group(joined.queue, joined.durable.subscription.name)
        self.broker.saves.begin_request()
        self.move(joined.durable, offset, left, now)
        self._when_saved(session, body.request_id, lambda: session.say("success", request_id=body.request_id))

    def move(self, durable: Durable, offset: int, left: int | None, now: int) -> None:
        """Let a subscription continue at an offset, with ``left`` of the entry there; its consumers start anew."""
        for consumer in durable.subscription.seek(offset, left, now):
            if isinstance(consumer.receiver, PulsarSession):
                self._dropped(consumer.receiver, consumer)
                consumer.receiver.say("close_consumer", consumer_id=consumer.id, request_id=NO_REQUEST)
        self.topics.moved(durable, now)
        self.topics.left(durable, now, by_seek=True)

    def skip(self, durable: Durable, count: int, now: int) -> None:
        """Acknowledge the next ``count`` messages of a subscription."""
        durable.subscription.skip(count)
        self.topics.moved(durable, now)
        self._look_at(durable)

    def unsubscribe(self, durable: Durable, now: int) -> None:
        """Delete a subscription and close its consumers."""
        self._close_consumers(durable, now)
        self.topics.unsubscribe(durable, now)

    def _close_consumers(self, durable: Durable, now: int) -> None:
        for consumer in [*durable.subscription.consumers]:
            if isinstance(consumer.receiver, PulsarSession):
                self._send_away(consumer.receiver, consumer.receiver.consumers[consumer.id], now)

    def _send_away(self, session: PulsarSession, joined: Joined, now: int) -> None:
        """Close a consumer from this side: its client subscribes again."""
        self._leave(session, joined, now)
        session.say("close_consumer", consumer_id=joined.consumer.id, request_id=NO_REQUEST)

    def _close_consumer(self, session: PulsarSession, body: Any, now: int) -> None:
        if (joined := session.consumers.get(body.consumer_id)) is not None:
            self._leave(session, joined, now)
        self._no_longer(session, ("consumer", body.consumer_id))
        session.say("success", request_id=body.request_id)

    def _leave(self, session: PulsarSession, joined: Joined, now: int) -> None:
        self._dropped(session, joined.consumer)
        joined.durable.subscription.remove(joined.consumer, now)
        self.topics.left(joined.durable, now)
        self._dues.pop(joined.durable, None)
        self._look_at(joined.durable)

    def _dropped(self, session: PulsarSession, consumer: PulsarConsumer) -> None:
        del session.consumers[consumer.id]
        self._clients -= 1
        self._size_of_wishes -= _size_of(consumer.policy, consumer.wanted)

    def _check_room(self, present: int, noun: str) -> None:
        """Check that there is room for one more producer or consumer.

        Raises:
            PulsarRefusedError: there is none.
        """
        if present >= MAX_OF_CONNECTION:
            raise PulsarRefusedError(PulsarError.NOT_ALLOWED, f"More than {MAX_OF_CONNECTION} {noun} of a connection")
        if self._clients >= MAX_CLIENTS:
            raise PulsarRefusedError(
                PulsarError.NOT_ALLOWED, f"There are already {MAX_CLIENTS:,} producers and consumers"
            )

    def _last_message_id(self, session: PulsarSession, body: Any, now: int) -> None:  # noqa: ARG002
        joined = session.consumers.get(body.consumer_id)
        if joined is None:
            raise PulsarRefusedError(PulsarError.METADATA, "Consumer not found")
        queue = joined.queue
        entry = queue.last_entry()
        last: dict[str, int] = {"ledgerId": EARLIEST, "entryId": EARLIEST, "partition": -1, "batch_index": -1}
        if entry is not None:
            last = {
                "ledgerId": queue.generation,
                "entryId": entry.offset,
                "partition": queue.place.partition,
                "batch_index": entry.messages - 1 if entry.is_batch else -1,
            }
        mark = {"ledgerId": queue.generation, "entryId": self._marked(joined)}
        session.say(
            "get_last_message_id_response",
            last_message_id=last,
            request_id=body.request_id,
            consumer_mark_delete_position=mark,
        )

    def _marked(self, joined: Joined) -> int:
        """Return the mark-delete position as an entry id."""
        last = joined.durable.subscription.cursor.next_offset - 1
        if last < 0:
            return EARLIEST
        entry = joined.queue.log.entry(last) if last >= joined.queue.log.start else None
        if entry is None:
            return last
        return entry.offset if last == entry.end - 1 else entry.offset - 1 if entry.offset else EARLIEST

    def _consumer_stats(self, session: PulsarSession, body: Any, now: int) -> None:  # noqa: ARG002
        joined = session.consumers.get(body.consumer_id)
        if joined is None:
            session.say(
                "consumer_stats_response", request_id=body.request_id, error_code=1, error_message="No consumer"
            )
            return
        consumer, subscription = joined.consumer, joined.durable.subscription
        session.say(
            "consumer_stats_response",
            request_id=body.request_id,
            consumerName=consumer.name,
            availablePermits=consumer.permits % (1 << 64),
            unackedMessages=consumer.unacked,
            blockedConsumerOnUnackedMsgs=consumer.is_blocked,
            address=session.address,
            type=subscription.kind.label,
            msgBacklog=subscription.backlog,
        )

    # Schemas

    def _schema(self, session: PulsarSession, body: Any, now: int) -> None:  # noqa: ARG002
        try:
            name = self.topics.parse(body.topic)
            self._check_name(session, name, ANY)
            wanted = parse_version(body.schema_version) if body.schema_version else None
            version, schema = self.topics.schema_of(name, wanted)
        except PulsarRefusedError as refused:
            error, text = int(refused.error), refused.text
            session.say("get_schema_response", request_id=body.request_id, error_code=error, error_message=text)
            return
        schema_fields = {"name": "/".join(name), "schema_data": schema.data, "type": schema.type}
        base = command(
            "get_schema_response",
            request_id=body.request_id,
            schema=schema_fields,
            schema_version=version_bytes(version),
        )
        for key, value in schema.properties:
            base.get_schema_response.schema.properties.add(key=key, value=value)
        session.send(base)

    def _new_schema(self, session: PulsarSession, body: Any, now: int) -> None:
        def answer() -> None:
            session.say("get_or_create_schema_response", request_id=body.request_id, schema_version=version)

        self.broker.saves.begin_request()
        version = b""
        try:
            queue = self._open(session, body.topic, PUB, now)
            if (schema := schema_of(body)) is not None:
                version = version_bytes(self.topics.register(queue.place.topic, schema))
        except (PulsarRefusedError, LimitError) as refused:
            error = refused.error if isinstance(refused, PulsarRefusedError) else PulsarError.NOT_ALLOWED
            session.say(
                "get_or_create_schema_response",
                request_id=body.request_id,
                error_code=int(error),
                error_message=str(refused),
            )
            return
        self._when_saved(session, body.request_id, answer)

    # Not supported

    def _no_transactions(self, session: PulsarSession, body: Any, now: int) -> None:  # noqa: ARG002
        session.refuse(body.request_id, PulsarError.NOT_ALLOWED, "Transactions are not enabled.")

    # Helpers

    def _open(
        self, session: PulsarSession, topic: str, permission: int, now: int, *, create: bool = True
    ) -> QueueTopic:
        name: PulsarTopicName = self.topics.parse(topic, PulsarError.SERVICE_NOT_READY)
        self._check_name(session, name, permission)
        return self.topics.open(name, now, create=create)

    def _when_saved(
        self, session: PulsarSession, request_id: int, answer: Callable[[], None], changes: int | None = None
    ) -> None:
        """Answer once the tables that the request has changed are on disk, or the first ``changes``."""
        saves = self.broker.saves

        def then(failure: MqtoolError | None, now: int) -> None:  # noqa: ARG001
            if failure is None:
                answer()
            else:
                session.refuse(request_id, PulsarError.METADATA, str(failure))

        if changes := saves.changes_of_request if changes is None else changes:
            saves.wait(changes, session, then, self._now)
        else:
            answer()


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def pattern_of(text: str) -> re.Pattern[str] | None:
    """Return a pattern to match topics with; None if the client has to match them."""
    if not text or len(text) > _MAX_PATTERN or not _is_simple(text):
        return None
    first, *others = text.removeprefix("persistent://").split(".*")
    if not others:
        return re.compile(first)
    # The first match of each part is as good as any: without backtracking, the time is linear.
    between = "".join([f"(?>.*?{part})" for part in others[:-1]])
    return re.compile(f"{first}{between}.*{others[-1]}")


def _sorted(topics: Mapping[str, list[str]]) -> list[str]:
    return sorted(itertools.chain.from_iterable(topics.values()))


def _is_meant(name: PulsarTopicName, pattern: re.Pattern[str]) -> bool:
    """Tell whether a pattern matches a topic; for a partition, the name of its topic is matched."""
    text = "/".join(name)
    return pattern.fullmatch(_OF_PARTITION.sub("", text) if "-partition-" in text else text) is not None


def _size_of(policy: KeyPolicy, wanted: EntryFilter) -> int:
    return len(wanted.tags) + len(wanted.sql) + 64 * len(policy.ranges)


def _digest_of(names: list[str]) -> str:
    """Return the hash by which clients identify a sorted list of topics."""
    return crc32c(",".join(names).encode()).to_bytes(4, "little").hex() if names else "00000000"


def _is_simple(pattern: str) -> bool:
    """Tell whether a Java pattern has the same meaning in Python: letters, ``.`` and ``.*``."""
    return re.fullmatch(r"(?:[\w/:%-]|\.\*|\\?\.)*", pattern) is not None
