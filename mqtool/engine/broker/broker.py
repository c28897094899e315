"""A broker: its parts, how they hang together, and what the passing of time asks of them.

It knows no protocol: who speaks one comes in by a door, see ``remoting_door.py``.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from mqtool.engine.broker.acknowledged import Acknowledged
from mqtool.engine.broker.acl import AccessControl
from mqtool.engine.broker.broker_stats import BrokerStatsManager
from mqtool.engine.broker.clients import Clients
from mqtool.engine.broker.consumer_offsets import ConsumerOffsets
from mqtool.engine.broker.copied_tables import CopiedTables
from mqtool.engine.broker.delayed import DelayedMessages
from mqtool.engine.broker.following import Following
from mqtool.engine.broker.gauges import Gauge
from mqtool.engine.broker.group_commit import GroupCommit
from mqtool.engine.broker.intake import Intake
from mqtool.engine.broker.operations.acknowledge import Acknowledgements
from mqtool.engine.broker.operations.administration import SettingRequests
from mqtool.engine.broker.operations.assignment import Assignments
from mqtool.engine.broker.operations.client_calls import ClientCalls
from mqtool.engine.broker.operations.clients import ClientRequests
from mqtool.engine.broker.operations.groups import GroupRequests
from mqtool.engine.broker.operations.offsets import OffsetRequests
from mqtool.engine.broker.operations.pop import PopRequests
from mqtool.engine.broker.operations.pull import Pulls
from mqtool.engine.broker.operations.reading import ReadingParts
from mqtool.engine.broker.operations.recall import Recalls
from mqtool.engine.broker.operations.reply import Replies
from mqtool.engine.broker.operations.role_changes import RoleChanges
from mqtool.engine.broker.operations.send import Sends
from mqtool.engine.broker.operations.statistics import Statistics
from mqtool.engine.broker.operations.topics import TopicRequests
from mqtool.engine.broker.pops import Pops
from mqtool.engine.broker.queue_locks import LockTable
from mqtool.engine.broker.request_modes import RequestModes
from mqtool.engine.broker.revive_log import ReviveLog
from mqtool.engine.broker.saves import Saves
from mqtool.engine.broker.sessions import Session
from mqtool.engine.broker.settings import BrokerSettings, Role
from mqtool.engine.broker.state import BrokerState
from mqtool.engine.broker.subscription_groups import SubscriptionGroups
from mqtool.engine.broker.timers import NAMES as TIMER_NAMES
from mqtool.engine.broker.timers import Timers
from mqtool.engine.broker.topics import Topics, has_messages_of_all
from mqtool.engine.broker.transactions import Transactions
from mqtool.engine.broker.waiting_room import WaitingRoom
from mqtool.errors import FormatError, NotFoundError
from mqtool.formats.new_message import Host
from mqtool.formats.properties import find_property, probe_of
from mqtool.formats.property_names import DELAY, REAL_TOPIC, TRAN_MSG
from mqtool.formats.pulsar_subscriptions import SubscriptionState
from mqtool.formats.stored_message import parse_stored
from mqtool.formats.topics import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC

if TYPE_CHECKING:
    from mqtool.engine.replication.master import Master
    from mqtool.engine.store.message_store import MessageStore

_REAL_TOPIC = probe_of(REAL_TOPIC)
_STORE_INTERVAL = 100
"""How often the store writes units and looks at its disk, in ms."""


class Ticker(Protocol):
    """Something that works by time."""

    def tick(self, now: int) -> None:
        """Do what is due."""
        ...

    def next_tick(self, now: int) -> int | None:
        """Return when something is due, None for never."""
        ...


Arrival = Callable[[str, int, int, int, int], None]
"""Is told topic, queue id, the offset behind the new message, its tags code and the time (ms)."""


class BrokerController:
    """The rules of a broker; times are in ms.

    Its parts take part in what happens by the tables that are made here: ``_tickers`` for whatever works by time,
    ``on_arrival`` for each message that can be read, ``_on_arrival_at`` for those of one topic, and the detours of
    ``intake`` for messages that are not to go straight to their topic.
    """

    def __init__(self, store: "MessageStore", now: int, settings: BrokerSettings | None = None) -> None:
        """Make a broker on an open store.

        Raises:
            FormatError: a table below ``config`` cannot be read.
        """
        self.store = store
        self.state = state = BrokerState(settings or BrokerSettings(), "127.0.0.1:10911")
        settings = state.settings
        self.on_configure: list[Callable[[BrokerSettings], None]] = []
        """Who is told of new settings."""
        self.on_stop: list[Callable[[int], None]] = []
        """Who is told the time (ms) when it stops, and has written what he keeps."""
        self.further_gauges: list[Callable[[], Iterable[Gauge]]] = []
        """What its doors tell beside it of how they are doing."""
        self.further_subscriptions: list[Callable[[], Iterable[SubscriptionState]]] = []
        """Subscriptions that its doors know of."""
        is_slave = state.role is Role.SLAVE
        self.acknowledged = Acknowledged(store.root, store.end_offset, was_left=store.was_recovered)
        self.on_stop.append(lambda _: self.acknowledged.close())
        if is_slave:  # nothing comes of its messages but what comes from its master
            store.take_only_copies()
            store.was_recovered = store.was_repaired = False
        self.following = Following()
        self._next_store_tick = now

        config = store.root / "config"
        self.intake = intake = Intake(store)
        self.room = room = WaitingRoom()
        self.saves = saves = Saves(room)
        self.topics = topics = Topics(config, settings, now, saves)
        self.groups = groups = SubscriptionGroups(config, now, creates=settings.auto_create_groups, saves=saves)
        self.offsets = offsets = ConsumerOffsets(config, now, saves)
        if store.was_recovered or is_slave:
            offsets.limit(store)
        self.access = (
            AccessControl(Path(settings.acl_file), now, self.topic_at, saves) if settings.acl_enabled else None
        )
        self.broker_stats = BrokerStatsManager(now)
        self.clients = Clients(groups)
        self.locks = LockTable()
        self.request_modes = RequestModes(config, saves)
        self.sends = Sends(intake, state, topics, groups, self.locks, self.broker_stats, now)
        self.replies = Replies(intake, state, self.sends, self.clients)
        self.client_calls = ClientCalls(store, self.clients)
        reading = ReadingParts(store, state, topics, groups, offsets, room)
        self.pulls = Pulls(reading, self.clients, self.broker_stats)
        self.assignments = Assignments(topics, groups, self.clients, self.request_modes)
        self.topic_requests = TopicRequests(store, topics, self.delete_queues)
        self.group_requests = GroupRequests(groups, offsets)
        self.setting_requests = SettingRequests(store, state, self.configure)
        self.statistics = Statistics(store, topics, groups, offsets, self.clients, self.broker_stats)
        self.group_commit = GroupCommit(store, state, room)
        self.slaves: Master | None = None
        self.role_changes = RoleChanges(store, state)
        self.delayed = DelayedMessages(store, state, saves, config, now)
        self.timers = Timers(store, state, saves, config, now)
        self.copied_tables = CopiedTables(topics, groups, offsets, self.delayed, self.request_modes, self.timers)
        revive_log = ReviveLog(intake, state, topics, groups, offsets, self.timers, now)
        self.pops = pops = Pops(
            store, state, topics, offsets, revive_log, room, self.broker_stats, saves, self.delete_queues, config, now
        )
        self.pop_requests = PopRequests(reading, pops)
        self.acknowledgements = Acknowledgements(store, topics, pops)
        self.recalls = Recalls(intake, state, topics)
        self.client_requests = ClientRequests(state, topics, groups, self.clients)
        self.offset_requests = OffsetRequests(reading, self.clients)
        self.transactions = Transactions(intake, state, topics, offsets, self.clients, self.access, now)

        self._tickers: list[Ticker] = [
            saves,
            self.group_commit,
            self.delayed,
            offsets,
            self.clients,
            self.timers,
            revive_log,
            pops.orders,
            self.transactions,
            self.broker_stats,
            *([self.access] if self.access else ()),
            room,  # last: what the others have brought is given out in the same tick
        ]
        if is_slave:
            of_masters = (self.delayed, self.timers, revive_log, pops.orders, self.transactions)
            self._tickers = [ticker for ticker in self._tickers if ticker not in of_masters]
        self.on_arrival: list[Arrival] = [room.arrived, self.broker_stats.arrived]
        """Who is told of each message that can be read."""
        self._on_arrival_at: dict[str, Arrival] = {}
        if not is_slave:
            self._on_arrival_at = {
                SCHEDULE_TOPIC: self.delayed.arrived,
                TIMER_TOPIC: self.timers.arrived,
                revive_log.topic: revive_log.arrived,
                HALF_TOPIC: self.transactions.arrived,
            }
        # This one first: a half message is delayed once it is committed.
        intake.add_put_hook([TRAN_MSG.encode()], self.transactions.put_hook)
        intake.add_put_hook([DELAY.encode()], self.delayed.put_hook)
        intake.add_put_hook(TIMER_NAMES, self.timers.put_hook)
        topics.on_delete += [
            offsets.delete_topic,
            pops.delete_topic,
            self.request_modes.delete_topic,
            self.broker_stats.forget_topic,
        ]
        store.dispatcher.on_arrival = self.arrived
        store.dispatcher.queues.batch_topics = topics.batch_topics

    @property
    def settings(self) -> BrokerSettings:
        """What it goes by now."""
        return self.state.settings

    @property
    def address(self) -> str:
        """The address that clients know."""
        return self.state.address

    @property
    def store_host(self) -> Host:
        """The address that messages are stored with."""
        return self.state.store_host

    def listens_at(self, address: str) -> None:
        """Take ``host:port`` for the address that clients know, and that messages are stored with."""
        self.state.listens_at(address)

    def configure(self, settings: BrokerSettings) -> None:
        """Go by these settings from now on; those of ``AT_START`` stay without effect."""
        self.state.settings = self.topics.settings = settings
        self.groups.creates = settings.auto_create_groups
        for tell in self.on_configure:
            tell(settings)

    def has_slaves(self, master: "Master") -> None:
        """Have sends wait for slaves from now on, where they are to, and tell of them."""
        self.slaves = self.group_commit.slaves = master

    def closed(self, session: Session, now: int) -> None:
        """Let go of all that belongs to a session that has ended."""
        self.room.closed(session, now)
        self.clients.closed(session)

    def tick(self, now: int) -> None:
        """Do what is due."""
        if now >= self._next_store_tick:
            self._next_store_tick = now + _STORE_INTERVAL
            self.store.tick(now)
        elif self.store.has_much_to_write:
            self.store.write_some_units()
        for ticker in self._tickers:
            ticker.tick(now)

    def next_tick(self, now: int) -> int:
        """Return when something is due."""
        if self.store.has_much_to_write:
            return now
        soonest = self._next_store_tick
        for ticker in self._tickers:
            at = ticker.next_tick(now)
            if at is not None and at < soonest:
                soonest = at
        return soonest

    def topic_at(self, physical_offset: int) -> str | None:
        """Return the topic that the message at an address is for, even if it waits elsewhere; None if there is none."""
        try:
            message = parse_stored(self.store.log.record(physical_offset)).message
        except (NotFoundError, FormatError):
            return None
        real = find_property(message.properties, _REAL_TOPIC) if has_messages_of_all(message.topic) else b""
        return real.decode("utf-8", "replace") or message.topic

    def delete_queues(self, topic: str) -> None:
        """Delete the queues of a topic; whoever is answered for that is answered once they are gone.

        Pulls that wait there are answered: made again a queue might have other messages where they wait.
        """
        for key in [key for key in self.store.queues() if key[0] == topic]:
            self.room.wake(key)
        if remove := self.store.let_go_topic(topic):
            if self.store.removes_aside:  # it waits until the messages are dispatched, the last of them in later turns
                self.store.write_some_units()
            else:
                self.store.write_units()
            self.saves.want(self.store.root / "consumequeue" / topic, tuple, lambda _path, _data: remove())

    def stop(self, now: int) -> None:
        """Have everything written that is kept in tables; the store is closed by whoever opened it.

        Raises:
            WriteError: the disk is full, or fails.
        """
        is_slave = self.state.role is Role.SLAVE  # whose tables are those of its master
        if not is_slave:
            self.timers.finish(now)
        if self.store.failure is None:
            self.store.flush()  # no table is ahead of the log
        self.store.write_units()
        for tell in self.on_stop:
            tell(now)
        self.saves.finish()
        if not is_slave:
            self.transactions.note_progress()  # which are consumer offsets
            self.delayed.save(now)
        self.offsets.keep(now)
        if not is_slave:
            self.timers.stop(now)
            self.pops.orders.keep(now)

    def arrived(self, topic: str, queue_id: int, next_offset: int, tags_code: int, now: int) -> None:
        """Tell whom it concerns that a message can be read; the store calls this for each."""
        for tell in self.on_arrival:
            tell(topic, queue_id, next_offset, tags_code, now)
        if topic in self._on_arrival_at:
            self._on_arrival_at[topic](topic, queue_id, next_offset, tags_code, now)
