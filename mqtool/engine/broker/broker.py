"""A broker: what it does with a request, and what the passing of time asks of it.

``Broker`` holds the tables that the processors share and knows which processor a code belongs to. Whatever works by
time is a ``Clockwork`` and stands in ``clockworks``.
"""

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from mqtool.engine.broker.acl import AccessControl
from mqtool.engine.broker.awaited_flushes import AwaitedFlushes
from mqtool.engine.broker.calls import Calls
from mqtool.engine.broker.clients import Clients
from mqtool.engine.broker.consumer_offsets import ConsumerOffsets
from mqtool.engine.broker.delayed import DelayedMessages
from mqtool.engine.broker.figures import Figures
from mqtool.engine.broker.parked_pulls import ParkedPulls
from mqtool.engine.broker.pops import Pops
from mqtool.engine.broker.processors import (
    accounts,
    admin,
    assignment,
    clients,
    consumers,
    groups,
    pop,
    pull,
    query,
    recall,
    refused,
    send,
    slaves,
    topics,
    transaction,
)
from mqtool.engine.broker.queue_locks import LockTable
from mqtool.engine.broker.request_modes import RequestModes
from mqtool.engine.broker.settings import BrokerSettings
from mqtool.engine.broker.subscription_groups import SubscriptionGroups
from mqtool.engine.broker.timers import Timers
from mqtool.engine.broker.topics import Topics, has_messages_of_all
from mqtool.engine.broker.transactions import Transactions
from mqtool.errors import FormatError, NotFoundError
from mqtool.formats.codes import ResponseCode
from mqtool.formats.hosts import parse_host
from mqtool.formats.properties import find_property, probe_of
from mqtool.formats.remoting import Outgoing, Peer, RemotingCommand
from mqtool.formats.stored_message import parse_stored
from mqtool.formats.unique_key import build_unique_key

if TYPE_CHECKING:
    from mqtool.engine.store.append_result import AppendResult
    from mqtool.engine.store.message_store import MessageStore
    from mqtool.formats.new_message import NewMessage

_REAL_TOPIC = probe_of("REAL_TOPIC")
_STORE_INTERVAL = 100
"""How often the store writes units and looks at its disk, in ms."""


class Request(NamedTuple):
    """A command from a client, and when it came."""

    command: RemotingCommand
    peer: Peer
    now: int


class Clockwork(Protocol):
    """Something that works by time."""

    def tick(self, now: int) -> Iterable[Outgoing]:
        """Do what is due; return what to send."""
        ...

    def next_tick(self, now: int) -> int | None:
        """Return when something is due, None for never."""
        ...


Arrival = Callable[[str, int, int, int, int], None]
"""Is told topic, queue id, the offset behind the new message, its tags code and the time (ms)."""

Detour = Callable[["NewMessage", int], "AppendResult | None"]
"""Changes a message, and where it goes, so that it waits elsewhere first; returns a result to refuse it."""


class Broker:
    """The rules of a broker; times are in ms.

    Others take part by the lists: ``on_arrival`` for each message that can be read, ``on_arrival_at`` for those of one
    topic, ``on_closed`` for each connection that has ended, ``on_stop`` for what must be in its file when the broker
    stops, ``detours`` for messages that are not to go straight to their topic, by a word that their properties have.
    """

    def __init__(self, store: "MessageStore", now: int, settings: BrokerSettings | None = None) -> None:
        """Make a broker on an open store.

        Raises:
            FormatError: a table below ``config`` cannot be read.
        """
        self.store = store
        self.settings = settings or BrokerSettings()
        self.listens_at("127.0.0.1:10911")
        self.processors: dict[int, Processor] = {**query.PROCESSORS, **send.PROCESSORS, **topics.PROCESSORS}
        for family in (
            accounts,
            assignment,
            clients,
            consumers,
            groups,
            pop,
            pull,
            recall,
            slaves,
            transaction,
            admin,
        ):
            self.processors |= family.PROCESSORS
        self.clockworks: list[Clockwork] = []
        self.on_closed: list[Callable[[Peer, int], Iterable[Outgoing]]] = []
        self.on_arrival: list[Arrival] = []
        self.on_arrival_at: dict[str, Arrival] = {}
        self.on_stop: list[Callable[[int], None]] = []
        self.detours: list[tuple[bytes, Detour]] = []
        self.rotation = itertools.count()
        """Chooses among queues where nothing else does."""
        self._started = now
        self._key_count = itertools.count()
        self._next_store_tick = now

        config = store.root / "config"
        self.topics = Topics(config, self.settings, now)
        self.awaited_flushes = AwaitedFlushes(self)
        self.delayed = DelayedMessages(self, config, now)
        self.calls = Calls()
        self.groups = SubscriptionGroups(config, now, creates=self.settings.auto_create_groups)
        self.offsets = ConsumerOffsets(config, now)
        if store.was_recovered:
            self.offsets.limit(store)
        self.clients = Clients(self.groups, self.calls)
        self.locks = LockTable()
        self.parked_pulls = ParkedPulls()
        self.clockworks += [self.calls, self.offsets, self.clients, self.parked_pulls]
        self.on_closed += [self.calls.closed, self.clients.closed, self.parked_pulls.closed]
        self.on_arrival.append(self.parked_pulls.arrived)
        self.on_stop.append(self.offsets.keep)
        self.topics.on_delete.append(self.offsets.delete_topic)
        self.timers = Timers(self, config, now)
        self.pops = Pops(self, config, now)
        self.request_modes = RequestModes(config)
        self.topics.on_delete += [self.pops.delete_topic, self.request_modes.delete_topic]
        self.transactions = Transactions(self, now)
        self.figures = Figures(now)
        self.on_arrival.append(self.figures.arrived)
        self.topics.on_delete.append(self.figures.forget_topic)
        self.clockworks.append(self.figures)
        self.access: AccessControl | None = None
        if self.settings.acl_enabled:
            self.access = AccessControl(Path(self.settings.acl_file), now, self.topic_at)
            self.clockworks.append(self.access)
        store.on_arrival = self.arrived
        store.batch_topics = self.topics.batch_topics

    def listens_at(self, address: str) -> None:
        """Take ``host:port`` for the address that clients know, and that messages are stored with."""
        self.address = address
        self.store_host = parse_host(address)

    def configure(self, settings: BrokerSettings) -> None:
        """Go by these settings from now on; those of ``AT_START`` stay without effect."""
        self.settings = self.topics.settings = settings
        self.groups.creates = settings.auto_create_groups

    def handle(self, command: RemotingCommand, peer: Peer, now: int) -> Iterable[Outgoing]:
        """Return what to send for a command."""
        if command.is_response:  # whose code may be that of a request
            return self.calls.answered(command, peer, now)
        if self.access and (fault := self.access.fault(command, peer)):
            remark = f"org.apache.rocketmq.acl.common.AclException: {fault}"
            return ((peer, command.answer(ResponseCode.SYSTEM_ERROR, remark=remark)),)
        processor = self.processors.get(command.code)
        if processor is None:
            return refused.refuse(Request(command, peer, now))
        return processor(self, Request(command, peer, now))

    def closed(self, peer: Peer, now: int) -> Iterable[Outgoing]:
        """Return what to send when a connection has ended."""
        return [outgoing for tell in self.on_closed for outgoing in tell(peer, now)]

    def tick(self, now: int) -> Iterable[Outgoing]:
        """Do what is due."""
        if now >= self._next_store_tick:
            self._next_store_tick = now + _STORE_INTERVAL
            self.store.tick(now)
        elif self.store.has_much_to_write:
            self.store.write_units()
        return [outgoing for clockwork in self.clockworks for outgoing in clockwork.tick(now)]

    def next_tick(self, now: int) -> int:
        """Return when something is due."""
        if self.store.has_much_to_write:
            return now
        soonest = self._next_store_tick
        for clockwork in self.clockworks:
            at = clockwork.next_tick(now)
            if at is not None and at < soonest:
                soonest = at
        return soonest

    def put(self, message: "NewMessage", now: int) -> "AppendResult":
        """Store a message, by a detour where its properties ask for one.

        Returns:
            Where it is stored, or why it is not.
        """
        for word, detour in self.detours:
            if word in message.properties and (refused := detour(message, now)) is not None:
                return refused
        return self.store.append(message, now)

    def topic_at(self, physical_offset: int) -> str | None:
        """Return the topic that the message at an address is for, though it may wait elsewhere; None without one."""
        try:
            message = parse_stored(self.store.log.record(physical_offset)).message
        except (NotFoundError, FormatError):
            return None
        real = find_property(message.properties, _REAL_TOPIC) if has_messages_of_all(message.topic) else b""
        return real.decode("utf-8", "replace") or message.topic

    def new_unique_key(self, now: int) -> str:
        """Return the key of a message whose producer gave it none."""
        host, port = self.store_host
        return build_unique_key(host, port, self._started, now, next(self._key_count))

    def stop(self, now: int) -> None:
        """Have everything written that is kept in tables; the store is closed by whoever opened it.

        Raises:
            WriteError: the disk is full, or fails.
        """
        self.timers.finish(now)
        if self.store.failure is None:
            self.store.flush()  # no table is ahead of the log
        for write in self.on_stop:
            write(now)

    def arrived(self, topic: str, queue_id: int, next_offset: int, tags_code: int, now: int) -> None:
        """Tell whom it concerns that a message can be read; the store calls this for each."""
        for tell in self.on_arrival:
            tell(topic, queue_id, next_offset, tags_code, now)
        if topic in self.on_arrival_at:
            self.on_arrival_at[topic](topic, queue_id, next_offset, tags_code, now)


Processor = Callable[[Broker, Request], Iterable[Outgoing]]
