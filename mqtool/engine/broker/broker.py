"""A broker: its parts, how they are connected, and their work as time passes.

It knows no protocol: protocols are handled by doors, see ``remoting_door.py``.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
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
from mqtool.engine.intervals import is_time
from mqtool.engine.store.file_kinds import CONFIG, CONSUME_QUEUE
from mqtool.errors import FormatError, MqtoolError, NotFoundError
from mqtool.formats.new_message import Host
from mqtool.formats.properties import find_property, probe_of
from mqtool.formats.property_names import DELAY, REAL_TOPIC, TRAN_MSG
from mqtool.formats.pulsar_subscriptions import SubscriptionState
from mqtool.formats.stored_message import parse_stored
from mqtool.formats.topics import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC

if TYPE_CHECKING:
    from mqtool.engine.replication.master import Master
    from mqtool.engine.store.message_store import MessageStore

log = logging.getLogger(__name__)

_REAL_TOPIC = probe_of(REAL_TOPIC)
_STORE_INTERVAL = 100
"""How often the store writes units and checks its disk, in ms."""
_AFTER_FAILURE_MS = 1000
"""How long to wait before something that is due is tried again."""


class Ticker(Protocol):
    """Something that does periodic work."""

    def tick(self, now: int) -> None:
        """Do what is due."""
        ...

    def next_tick(self, now: int) -> int | None:
        """Return when something is due, None for never."""
        ...


Arrival = Callable[[str, int, int, Sequence[int], int], None]
"""Called with topic, queue id, the offset after the new messages, the tags code of each, and the time (ms)."""


class BrokerController:
    """The rules of a broker; times are in ms.

    Its parts are connected by the tables that are built here: ``_tickers`` for periodic work,
    ``on_arrival`` for messages that can be read, ``_on_arrival_at`` for those of one topic, and the put hooks of
    ``intake`` for messages that must not go directly to their topic.
    """

    def __init__(self, store: "MessageStore", now: int, settings: BrokerSettings | None = None) -> None:
        """Create a broker on an open store.

        Raises:
            FormatError: a table below ``config`` cannot be read.
        """
        self.store = store
        self.state = state = BrokerState(settings or BrokerSettings(), "127.0.0.1:10911")
        settings = state.settings
        self.on_configure: list[Callable[[BrokerSettings], None]] = []
        """Listeners for new settings."""
        self.on_stop: list[Callable[[int], None]] = []
        """Called with the time (ms) when it stops, to write their data."""
        self.on_queues_deleted: list[Callable[[Collection[str]], None]] = []
        """Called with topics whose queues were deleted; those of a topic that still exists begin again at offset 0."""
        self.on_confirmed: list[Callable[[], None]] = []
        """Called when slaves have more of the log, to send the answers that have waited for it."""
        self.further_gauges: list[Callable[[], Iterable[Gauge]]] = []
        """Further gauges, of its doors."""
        self.further_subscriptions: list[Callable[[], Iterable[SubscriptionState]]] = []
        """Further subscriptions, of its doors."""
        is_slave = state.role is Role.SLAVE
        self.acknowledged = Acknowledged(store.root, store.end_offset, was_left=store.was_recovered)
        self.on_stop.append(lambda _: self.acknowledged.close())
        if is_slave:  # its messages have no effects except those replicated from its master
            store.take_only_copies()
            store.was_recovered = store.was_repaired = False
        self.following = Following()
        self._next_store_tick = now
        self._again_at: dict[int, int] = {}
        """When to try again, by the id of each ticker that has failed."""

        config = store.root / CONFIG.name
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
            store,
            state,
            topics,
            groups,
            offsets,
            revive_log,
            room,
            self.broker_stats,
            saves,
            self.delete_queues,
            config,
            now,
        )
        self.pop_requests = PopRequests(reading, pops)
        self.group_requests = GroupRequests(groups, offsets, pops.orders)
        self.acknowledgements = Acknowledgements(store, state, topics, pops)
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
            room,  # last, so that what the others add is delivered in the same tick
        ]
        if is_slave:
            of_masters = (self.delayed, self.timers, revive_log, pops.orders, self.transactions)
            self._tickers = [ticker for ticker in self._tickers if ticker not in of_masters]
        self.on_arrival: list[Arrival] = [room.arrived, self.broker_stats.arrived]
        """Listeners for messages that can be read."""
        self._on_arrival_at: dict[str, Arrival] = {}
        if not is_slave:
            self._on_arrival_at = {
                SCHEDULE_TOPIC: self.delayed.arrived,
                TIMER_TOPIC: self.timers.arrived,
                revive_log.topic: revive_log.arrived,
                HALF_TOPIC: self.transactions.arrived,
            }
        # First: a half message is delayed once it is committed.
        intake.add_put_hook([TRAN_MSG.encode()], self.transactions.put_hook)
        intake.add_put_hook([DELAY.encode()], self.delayed.put_hook)
        intake.add_put_hook(TIMER_NAMES, self.timers.put_hook)
        topics.on_delete += [
            pops.delete_topics,  # by the offsets
            offsets.delete_topics,
            pops.orders.delete_topics,
            self.request_modes.delete_topics,
            self.broker_stats.forget_topics,
        ]
        store.dispatcher.on_arrival = self.arrived
        store.dispatcher.on_restart = lambda topic, now: offsets.delete_topics([topic], now)
        store.dispatcher.queues.batch_topics = topics.batch_topics

    @property
    def settings(self) -> BrokerSettings:
        """The current settings."""
        return self.state.settings

    @property
    def address(self) -> str:
        """The address that clients know."""
        return self.state.address

    @property
    def store_host(self) -> Host:
        """The address that messages are stored with."""
        return self.state.store_host

    def listens_at(self, address: str, store_host: str = "") -> None:
        """Use ``host:port`` as the address for clients, and ``store_host`` in messages if the host is a name."""
        self.state.listens_at(address, store_host)

    def configure(self, settings: BrokerSettings) -> None:
        """Apply new settings; those of ``AT_START`` have no effect."""
        self.state.settings = self.topics.settings = settings
        self.groups.creates = settings.auto_create_groups
        for tell in self.on_configure:
            tell(settings)

    def has_slaves(self, master: "Master") -> None:
        """From now on, make sends wait for slaves if configured, and report on slaves."""
        self.slaves = self.group_commit.slaves = master
        master.on_confirmed = self._confirmed

    def _confirmed(self) -> None:
        for send_answers in self.on_confirmed:
            send_answers()

    def closed(self, session: Session, now: int) -> None:
        """Release everything of a session that has ended."""
        self.room.closed(session, now)
        self.clients.closed(session)

    def tick(self, now: int) -> None:
        """Do what is due."""
        if is_time(self._next_store_tick, _STORE_INTERVAL, now):
            self._next_store_tick = now + _STORE_INTERVAL
            self.store.tick(now)
        elif self.store.has_much_to_write:
            self.store.write_some_units()
        for ticker in self._tickers:
            if self._again_at and now < self._again_at.get(id(ticker), now) <= now + _AFTER_FAILURE_MS:
                continue
            try:
                ticker.tick(now)
            except MqtoolError as error:  # of a file that it reads: the others have their turn
                if id(ticker) not in self._again_at:
                    log.warning("due work is postponed until this works again: %s", error)
                self._again_at[id(ticker)] = now + _AFTER_FAILURE_MS
            else:
                if self._again_at:
                    self._again_at.pop(id(ticker), None)

    def next_tick(self, now: int) -> int:
        """Return when something is due."""
        if self.store.has_much_to_write or is_time(self._next_store_tick, _STORE_INTERVAL, now):
            return now
        soonest = self._next_store_tick
        for ticker in self._tickers:
            at = ticker.next_tick(now)
            if at is not None and at < soonest:
                soonest = min(soonest, max(at, self._again_at.get(id(ticker), at)))
        return soonest

    def topic_at(self, physical_offset: int) -> str | None:
        """Return the topic that the message at an address is for, even if it waits elsewhere; None if there is none."""
        try:
            message = parse_stored(self.store.log.record(physical_offset)).message
        except (NotFoundError, FormatError):
            return None
        real = find_property(message.properties, _REAL_TOPIC) if has_messages_of_all(message.topic) else b""
        return real.decode("utf-8", "replace") or message.topic

    def delete_queues(self, topics: Collection[str]) -> None:
        """Delete the queues of topics; the answer waits until they are gone.

        Pulls that wait there are answered: a recreated queue might have other messages at their offsets.
        """
        for topic in dict.fromkeys(topics):
            if keys := self.store.queues_of(topic):
                for key in keys:
                    self.room.wake(key)
                self._delete_queues_of(topic)
        for tell in self.on_queues_deleted:
            tell(topics)

    def _delete_queues_of(self, topic: str) -> None:
        if remove := self.store.let_go_topic(topic):
            if self.store.removes_aside:  # it waits until the messages are dispatched, the last ones in later turns
                self.store.write_some_units()
            else:
                self.store.write_units()
            self.saves.want(self.store.root / CONSUME_QUEUE.name / topic, tuple, lambda _path, _data: remove())

    def stop(self, now: int) -> None:
        """Write all tables; the store is closed by its owner.

        Raises:
            WriteError: the disk is full, or fails.
        """
        is_slave = self.state.role is Role.SLAVE  # its tables are those of its master
        if not is_slave:
            self.timers.finish(now)
        if self.store.failure is None:
            self.store.flush()  # so that no table is ahead of the log
        self.store.write_units()
        for tell in self.on_stop:
            tell(now)
        self.saves.finish()
        if not is_slave:
            self.transactions.note_progress()  # progress is kept as consumer offsets
            self.delayed.save(now)
        self.offsets.keep(now)
        if not is_slave:
            self.timers.stop(now)
            self.pops.orders.keep(now)

    def arrived(self, topic: str, queue_id: int, next_offset: int, tags_codes: Sequence[int], now: int) -> None:
        """Notify listeners that messages can be read; the store calls this for all."""
        for tell in self.on_arrival:
            tell(topic, queue_id, next_offset, tags_codes, now)
        if topic in self._on_arrival_at:
            self._on_arrival_at[topic](topic, queue_id, next_offset, tags_codes, now)
