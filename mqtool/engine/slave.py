"""A running slave: it finds its master, compares the logs, appends received bytes, and copies the master's tables.

The rules of the stream are in ``replication/follower.py``, of the comparison in ``replication/comparing.py``; here
they get sockets and a clock. (Rules: replication.md 2.5, 5, 6. RocketMQ: ``DefaultHAClient``, ``SlaveSynchronize``.)
"""

import asyncio
import contextlib
import logging
import shlex
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, cast

from mqtool.engine.broker.following import FollowingStatus
from mqtool.engine.broker.kept_role import EPOCH
from mqtool.engine.other_log import Connect, NotToldError, OtherLog
from mqtool.engine.registrar import Registrar
from mqtool.engine.remoting.client import RemotingClient
from mqtool.engine.replication.comparing import (
    COMPARED_RECORDS,
    ComparedRange,
    Extent,
    RecordPrefix,
    find_fork,
    misfit_of_extents,
    misfit_of_piece,
    to_compare,
)
from mqtool.engine.replication.follower import Follower, HangUpError
from mqtool.engine.store.disk import DiskFullError
from mqtool.engine.streams.reasons import reason_of
from mqtool.errors import AnswerTimeoutError, FormatError, MqtoolError, UnavailableError
from mqtool.formats.bodies import parse_body
from mqtool.formats.codes import RequestCode, ResponseCode
from mqtool.formats.remoting import RemotingCommand
from mqtool.formats.settings import parse_settings

if TYPE_CHECKING:
    from mqtool.engine.broker.broker import BrokerController
    from mqtool.engine.name_server.name_server import MasterAddress

log = logging.getLogger(__name__)

FAST_PORT_DISTANCE = 2
"""Distance below its port of the port on which a master answers urgent requests."""
_CONNECT_SECONDS = 3.0
_AGAIN_SECONDS = (1.0, 2.0, 5.0)
"""How long to wait after losing a connection: the first time, the second, and from then on."""
_LOOK_AGAIN_SECONDS = 10.0
"""How long to wait before comparing the logs again if they did not fit, or the disk was full."""
_UNANSWERED_SECONDS = 60.0
"""How long a master that does not answer in time is asked again before its log is followed without a comparison."""
_SPEED_SECONDS = 1.0
_LOOK_SECONDS = 0.1
_READ_AT_ONCE = 256 << 10
_OUR_SETTING = "haDialect"
"""Settings that only mqtool brokers have."""
_TABLES = {
    RequestCode.GET_ALL_TOPIC_CONFIG: "topics",
    RequestCode.GET_BROKER_RUNTIME_INFO: "the end of its log",
    RequestCode.GET_ALL_CONSUMER_OFFSET: "consumer offsets",
    RequestCode.GET_ALL_DELAY_OFFSET: "delay levels",
    RequestCode.GET_TIMER_CHECK_POINT: "timers",
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: "groups",
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: "request modes",
}
"""What is requested of a master every ``haCopyInterval``."""


class StoppedError(MqtoolError):
    """The log is not the beginning of the master's: replicating would damage it."""


class _MasterLife(NamedTuple):
    """One run of a master: the next one may have a shorter log, with different messages at its end."""

    address: str
    begun: str  # when it was started, as it states; empty if it does not

    def may_be(self, other: "_MasterLife") -> bool:
        """Return whether that is the same run, as far as is known."""
        return self.address == other.address and (self.begun == other.begun or not (self.begun and other.begun))


class _Late(NamedTuple):
    """Offsets of consumers, delay levels and timers that wait until the log has reached the end of the master's."""

    master: _MasterLife
    end: int
    timestamp: int  # when they were requested, in ms
    offsets: bytes
    delay_offsets: bytes
    timer_check_point: bytes


class Slave:
    """Keeps the store of a broker a copy of its master's, from ``start`` to ``stop``."""

    def __init__(
        self, broker: "BrokerController", registrar: Registrar, connect: Connect, clock: Callable[[], int]
    ) -> None:
        """Create one; nothing is requested yet."""
        self._broker = broker
        self._store = broker.store
        self._following = broker.following
        self._registrar = registrar
        self._clock = clock
        self._connect = connect
        self._client: RemotingClient | None = None
        self._masters: Extent | None = None
        self._life = _MasterLife("", "")
        """Run of the master that was last asked for the ends of its log."""
        self._followed: _MasterLife | None = None
        """Run of the master whose log is followed; None while the logs are not known to fit."""
        self._is_to_be_compared = False
        """Whether the logs were not compared as the master could not be reached: when it answers, they can be.

        Not if it does not answer in time: then each attempt holds up replication for ``_UNANSWERED_SECONDS``.
        """
        self._answers = False
        """Whether it has answered since."""
        self._unanswered_since: int | None = None
        """Since when the master has not answered in time about its log."""
        self._copied_from = ""
        """Run of the master whose tables were last requested."""
        self._copied = asyncio.Event()
        self._late: _Late | None = None
        self._gap_at: int | None = None
        """Where the log ended when its master was last seen not to have what follows any more."""
        self._has_gap = False
        """Whether the log still ended there the next time: nothing can continue it."""
        self._not_copied: dict[int, str] = {}
        """Why tables were not copied the last time, by the code of their requests."""
        self._said: dict[str, str] = {}  # last log messages, by subject

    def start(self) -> None:
        """Start following."""
        settings = self._broker.settings
        if not settings.slave_read_enabled:
            log.warning("slaveReadEnable=false: consumers cannot read from this slave, even while its master is down")
        self._tasks = [asyncio.create_task(self._guarded(work)) for work in (self._follow_on, self._copy_on)]

    async def stop(self) -> None:
        """Stop following, and wait until nothing is in progress."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._client:
            await self._client.close()

    async def _guarded(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Restart work that ended with an error: a slave that replicates nothing must not look as if it did."""
        while True:
            try:
                await work()
            except Exception:
                log.exception("replication: internal error")
                self._set(FollowingStatus.STOPPED, "internal error, see the log")
                await asyncio.sleep(_LOOK_AGAIN_SECONDS)

    # The log

    async def _follow_on(self) -> None:
        losses = 0
        while True:
            await self._until_master_is_known()
            begun = self._clock()
            try:
                await self._until_tables_are_copied()
                await self._compare()
                await self._follow()
            except StoppedError as error:
                self._say("log", f"replication has stopped: this log does not match the log of the master: {error}")
                self._set(FollowingStatus.STOPPED, str(error))
                self._following.misfit = str(error)
                await self._wait(_LOOK_AGAIN_SECONDS)
            except DiskFullError as error:
                self._say("log", f"replication has stopped until there is disk space: {error}")
                self._set(FollowingStatus.STOPPED, str(error))
                await self._wait(_LOOK_AGAIN_SECONDS)
            except (HangUpError, UnavailableError) as error:
                self._say("log", f"not following the log of {self._following.ha_address}: {error}; retrying")
                self._set(FollowingStatus.SEARCHING, str(error))
                losses = 0 if self._clock() - begun > _LOOK_AGAIN_SECONDS * 1000 else losses + 1
                self._registrar.register_soon()
                await asyncio.sleep(_AGAIN_SECONDS[min(losses, len(_AGAIN_SECONDS)) - 1])
            except MqtoolError as error:
                self._say("log", f"replication has stopped: {error}")
                self._set(FollowingStatus.STOPPED, str(error))
                await self._wait(_LOOK_AGAIN_SECONDS)

    async def _wait(self, seconds: float) -> None:
        """Wait for a time, or until another master is known."""
        before = self._registrar.master
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._registrar.master == before:
                    await self._registrar.master_changed()

    async def _until_master_is_known(self) -> None:
        """Wait until the name server knows a master."""
        settings, registrar, following = self._broker.settings, self._registrar, self._following
        while (master := self._master) is None or not (master.ha_address or settings.ha_master_address):
            if settings.ha_master_address and master is None:
                break  # its tables and records cannot be requested, but its log can be followed
            why = (
                "no name server knows its master"
                if master is None
                else "its master has not registered a port for slaves"
            )
            self._set(FollowingStatus.SEARCHING, why)
            await registrar.master_changed()
        following.master_address = master.address if master else ""
        following.ha_address = settings.ha_master_address or (master.ha_address if master else "")

    @property
    def _master(self) -> "MasterAddress | None":
        """The master according to name servers; shortly after a change of roles it may still be this broker."""
        master = self._registrar.master
        return master if master is not None and master.address not in ("", self._broker.address) else None

    def _has_other_master(self) -> bool:
        """Return whether the master according to name servers differs from the one that is followed."""
        master, following = self._master, self._following
        if master is None:
            return False
        ha_address = self._broker.settings.ha_master_address or master.ha_address
        return (master.address, ha_address) != (following.master_address, following.ha_address)

    def _why_leave(self) -> str:
        """Return why the master should not be followed over this connection any longer, empty to stay."""
        if self._has_other_master():
            return "another broker has become the master"
        if self._is_to_be_compared and self._answers:  # a log that differs may look as if there were nothing to send
            return "the master can be reached now, so that the logs can be compared"
        return "the master has removed the messages after the end of this log" if self._has_gap else ""

    async def _until_tables_are_copied(self) -> None:
        """Wait for the first copy of a master's, or its failure: what topics are like decides how queues are kept."""
        while self._following.master_address and self._copied_from != self._following.master_address:
            if self._has_other_master():
                raise UnavailableError("another broker has become the master")
            await self._copied.wait()

    async def _follow(self) -> None:
        """Follow over one connection until it ends, which is always an error."""
        settings, following, store = self._broker.settings, self._following, self._store
        host, colon, port = following.ha_address.rpartition(":")
        if not colon or not port.isdecimal():
            raise UnavailableError(f"{following.ha_address} is not an address of the form host:port")
        first = await self._first() if settings.starts_at_first_byte else None
        follower = Follower(
            store,
            self._clock(),
            report_interval_ms=settings.ha_heartbeat_ms,
            silence_ms=settings.ha_housekeeping_ms,
            first=first,
        )
        begin = store.end_offset

        def say_following() -> None:  # not before a frame: whatever listens on that port may accept connections
            log.info("following %s from %s on", following.ha_address, f"{begin:,}")
            self._said.pop("log", None)

        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                _, stream = await asyncio.get_running_loop().create_connection(
                    lambda: _HaStream(follower, self._broker, self._clock, say_following), host.strip("[]"), int(port)
                )
        except OSError as error:
            raise UnavailableError(f"cannot connect to {following.ha_address} ({reason_of(error)})") from error
        except TimeoutError:
            raise UnavailableError(f"{following.ha_address} cannot be reached") from None
        if stream.leads_to(self._broker.state.ha_address):
            stream.abort()
            raise UnavailableError("it is the HA port of this slave itself: see haMasterAddress")
        self._set(FollowingStatus.FOLLOWING, "")
        self._gap_at, self._has_gap = None, False
        try:
            await stream.until_end(self._why_leave)
        finally:
            self._followed = None
            following.bytes_per_second = 0
            stream.abort()

    async def _first(self) -> RecordPrefix | None:
        """Return where an empty slave begins to have the whole log; None if it is not empty, or the master is.

        Raises:
            UnavailableError: the master does not say.
        """
        extent = self._masters
        if self._store.end_offset:
            return None
        if extent is None:
            raise UnavailableError(
                f"haStartAtFirstByte: the start of its log is not known: {self._following.unchecked}"
            )
        if not extent.end_offset or extent.start_offset:
            return RecordPrefix(extent.start_offset, b"") if extent.end_offset else None
        try:
            record = await self._log_of_master().record(0)
        except NotToldError as error:
            raise UnavailableError(f"its first message cannot be fetched: {error}") from error
        if record is None:
            raise UnavailableError("its first message cannot be fetched")
        return RecordPrefix(0, record)

    # Comparing

    async def _compare(self) -> None:
        """Check that the log is the beginning of the master's, as far as that can be told.

        Raises:
            StoppedError: it is not.
            MqtoolError: the disk fails.
        """
        store, following = self._store, self._following
        self._masters = self._followed = None
        self._is_to_be_compared = self._answers = False
        following.unchecked = ""
        if not following.master_address:
            self._life = _MasterLife("", "")
            return self._leave_unchecked("no name server knows the address of its broker")
        try:
            masters = self._masters = await self._extent_of_master()
            if store.end_offset > masters.end_offset and not store.cut_blank(masters.end_offset):
                store.cut_half()
            blank = store.blank_at_end()
            if blank is not None and blank >= masters.start_offset and await self._log_of_master().record(blank):
                store.cut_blank(blank)  # the master was restarted at the end of that segment, and has used it
            ours = Extent(store.log.min_offset, store.end_offset, store.log.file_size)
            if misfit := misfit_of_extents(ours, masters):
                await self._stop_or_cut(misfit, ours, masters)
            pieces = [RecordPrefix(*piece) for piece in store.last_records(COMPARED_RECORDS)]
            pieces = to_compare(pieces, masters)
            records = await asyncio.gather(*(self._log_of_master().record(piece.physical_offset) for piece in pieces))
        except (
            AnswerTimeoutError
        ) as error:  # it is busy, or was stopped for a while: nothing else shows a different log
            now = self._clock()
            self._unanswered_since = self._unanswered_since or now
            if store.end_offset and now - self._unanswered_since < _UNANSWERED_SECONDS * 1000:
                raise
            return self._leave_unchecked(str(error))
        except (UnavailableError, NotToldError) as error:
            self._is_to_be_compared = isinstance(error, UnavailableError)
            return self._leave_unchecked(str(error))
        self._unanswered_since = None
        for piece, record in zip(pieces, records, strict=True):
            if misfit := misfit_of_piece(piece, record):
                if piece == pieces[-1] and store.cut_half():  # the beginning of a message that the master has lost
                    break
                await self._stop_or_cut(misfit, ours, masters)
        self._said.pop("check", None)
        following.misfit = ""
        self._go_on_with(self._life)
        return None

    def _go_on_with(self, master: _MasterLife) -> None:
        """Follow a master and wait for its offsets; those of an earlier run are worthless now."""
        self._followed = master
        if self._late is not None and self._late.master != master:
            self._late = None

    async def _stop_or_cut(self, misfit: str, ours: Extent, masters: Extent) -> NoReturn:
        """Cut off the diverged end of the log, if no slave has ever acknowledged any of it.

        Does not return then: the broker restarts.

        Raises:
            StoppedError: it is not cut; the text says what differs, and what can be done.
        """
        at = await self._fork(ours, masters)
        if at is None:
            raise StoppedError(misfit)
        size = ours.end_offset - at
        text = f"{misfit}; up to {at:,} both are the same, and the {size:,} bytes after that exist only on this broker"
        if at >= masters.end_offset:  # it is merely longer
            raise StoppedError(text)
        if at <= ours.start_offset:
            raise StoppedError(f"{text}: to follow it, keep this store for them, and start with an empty store")
        if at < self._broker.acknowledged.offset:
            command = f"mqtool recover -s {shlex.quote(str(self._store.root))} --cut-at {at}"
            raise StoppedError(
                f"{text}, which a slave has acknowledged: stop this broker, and `{command}` sets them aside"
            )
        if reason := self._broker.role_changes.cut(at):
            raise StoppedError(f"{text}: {reason}")
        log.warning("this log differs from the master's: %s; setting them aside before following it again", text)
        await asyncio.Event().wait()
        raise AssertionError

    async def _fork(self, ours: Extent, masters: Extent) -> int | None:
        """Return where a record begins that is the first that differs; None if the master cannot tell."""
        start, end = max(ours.start_offset, masters.start_offset), min(ours.end_offset, masters.end_offset)
        if start >= end or ours.segment_size != masters.segment_size:
            return None
        search, same = find_fork(start, end), None
        try:
            while True:
                blocks = next(search) if same is None else search.send(same)
                same = await self._are_same(blocks)
        except StopIteration as stopped:
            at = stopped.value
        except (UnavailableError, NotToldError):
            return None
        return self._store.start_of_record(at) if at < end else at

    async def _are_same(self, blocks: ComparedRange) -> list[bool]:
        theirs = await self._log_of_master().checksums(blocks)
        ours = [self._store.checksum(at, size) for at, size in blocks.places()]
        if len(theirs) != len(ours):
            raise NotToldError("it does not report checksums of its log")
        return [mine == its for mine, its in zip(ours, theirs, strict=True)]

    def _leave_unchecked(self, reason: str) -> None:
        self._unanswered_since = None
        self._following.unchecked = reason
        self._go_on_with(self._life)
        self._say("check", f"this log was not compared with the log of its master: {reason}")

    async def _extent_of_master(self) -> Extent:
        address = self._following.master_address
        self._life = _MasterLife(address, "")
        info = await self._log_of_master().ask(RequestCode.GET_BROKER_RUNTIME_INFO)
        self._life = _life_and_extent(info.body, address)[0]
        config = await self._log_of_master().ask(RequestCode.GET_BROKER_CONFIG)
        try:
            table = parse_body(info.body)["table"]
            start, end = int(table["commitLogMinOffset"]), int(table["commitLogMaxOffset"])
            settings = parse_settings(config.body.decode("utf-8", "replace"))
            size = int(settings.get("mappedFileSizeCommitLog", 0))
            epoch = int(table.get(EPOCH, 0)) if _OUR_SETTING in settings else None
        except (FormatError, KeyError, TypeError, ValueError) as error:
            raise NotToldError("it does not report the start and end of its log") from error
        if epoch is not None:
            self._check_epoch(epoch)
        return Extent(max(0, start), end, size)

    def _check_epoch(self, epoch: int) -> None:
        """Note the epoch of a master.

        Raises:
            StoppedError: another has become the master since.
        """
        if epoch < (known := self._broker.state.epoch):
            raise StoppedError(
                f"its master is at epoch {epoch}, this slave at epoch {known}: another broker has become the "
                "master since; otherwise stop this slave and remove config/mqtoolRole.json from its store"
            )
        self._broker.role_changes.learn(epoch)

    def _log_of_master(self) -> OtherLog:
        address = self._following.master_address
        if self._client is None or self._client.addresses != [address]:
            old, self._client = self._client, self._connect(address)
            if old:
                self._closing = asyncio.create_task(old.close())
        return OtherLog(self._client)

    # Tables

    async def _copy_on(self) -> None:
        while True:
            if (master := self._master) is not None:
                await self._while_it_is_master(self._copy(master.address))
                self._copied_from = master.address
                self._copied.set()
                self._copied = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._broker.settings.copy_interval_ms / 1000):
                    await self._until_late_are_due()
                    await self._registrar.master_changed()

    async def _while_it_is_master(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something that takes long if the master does not answer; it is abandoned when another master is known."""
        tasks = [asyncio.create_task(work), asyncio.create_task(self._registrar.master_changed())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                if not task.done():
                    task.cancel()
            done = await asyncio.gather(*tasks, return_exceptions=True)
        if isinstance(done[0], Exception):
            raise done[0]

    async def _until_late_are_due(self) -> None:
        """Apply waiting offsets once their messages have arrived."""
        while (late := self._late) is not None:
            if self._is_due(late):
                tables = self._broker.copied_tables
                is_taken = self._take(RequestCode.GET_ALL_CONSUMER_OFFSET, late.offsets, tables.take_offsets)
                self._take(RequestCode.GET_ALL_DELAY_OFFSET, late.delay_offsets, tables.take_delay_offsets)
                self._take(RequestCode.GET_TIMER_CHECK_POINT, late.timer_check_point, tables.take_timer_check_point)
                if is_taken:
                    self._following.copied_timestamp = late.timestamp
                self._late = None
            else:
                await asyncio.sleep(_LOOK_SECONDS)

    def _is_due(self, late: _Late) -> bool:
        """Return whether the messages of waiting offsets have arrived, rather than others at their addresses."""
        is_here = self._store.end_offset >= late.end
        return is_here and self._followed is not None and self._followed.may_be(late.master)

    async def _copy(self, address: str) -> None:
        timestamp = self._clock()
        host, _, port = address.rpartition(":")
        fast = f"{host}:{int(port) - FAST_PORT_DISTANCE}" if port.isdecimal() else address
        tables = self._broker.copied_tables
        async with contextlib.AsyncExitStack() as stack:
            client = self._connect(address)
            stack.push_async_callback(client.close)
            fast_client = self._connect(fast, address)
            stack.push_async_callback(fast_client.close)
            await self._copy_one(fast_client, RequestCode.GET_ALL_TOPIC_CONFIG, tables.take_topics)
            await self._ask_for_offsets(client, fast_client, address)
            await self._copy_one(client, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, tables.take_groups)
            await self._copy_one(client, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, tables.take_request_modes)
        if not self._not_copied:
            self._following.tables_timestamp = timestamp

    async def _ask_for_offsets(self, client: RemotingClient, fast_client: RemotingClient, address: str) -> None:
        """Request the offsets of a master and make them wait for their messages, unless others of the same run wait."""
        master, start, _ = await self._life_of(client, address)
        self._answers = master.begun != ""
        self._look_for_gap(start)
        if self._late is not None and self._late.master == master:
            return  # always taking the latest would never reach the end of a growing log
        timestamp = self._clock()
        offsets = await self._body(client, RequestCode.GET_ALL_CONSUMER_OFFSET)
        delay_offsets = await self._body(client, RequestCode.GET_ALL_DELAY_OFFSET)
        check_point = await self._body(fast_client, RequestCode.GET_TIMER_CHECK_POINT, may_be_none=True)
        still, _, end = await self._life_of(client, address)
        is_same = still == master
        self._late = _Late(master, end, timestamp, offsets, delay_offsets, check_point) if is_same else None

    def _look_for_gap(self, start: int) -> None:
        """Note whether a master has removed what follows this log: it sends heartbeats only, as if there were nothing.

        Once is not enough: what it has removed since may still be on the way.
        """
        end = self._store.end_offset
        gap_at = end if 0 < end < start else None
        self._has_gap = gap_at is not None and gap_at == self._gap_at
        self._gap_at = gap_at

    async def _life_of(self, client: RemotingClient, address: str) -> tuple[_MasterLife, int, int]:
        """Return the start time of a master, and start and end of its log; empty and 0 if it does not say."""
        info = await self._body(client, RequestCode.GET_BROKER_RUNTIME_INFO)
        return _life_and_extent(info, address)

    async def _copy_one(self, client: RemotingClient, code: int, take: Callable[[bytes], None]) -> None:
        self._take(code, await self._body(client, code), take)

    async def _body(self, client: RemotingClient, code: int, *, may_be_none: bool = False) -> bytes:
        """Return the body of the answer to a request, b"" without one."""
        try:
            answer = await client.invoke(RemotingCommand(code))
        except MqtoolError as error:
            self._note_copy(code, str(error))
            return b""
        if answer.code != ResponseCode.SUCCESS:
            is_known = answer.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED and not may_be_none
            fault = answer.remark or f"response code {answer.code}" if is_known else ""  # 4.9 does not know all
            self._note_copy(code, fault)
            return b""
        if not answer.body or code == RequestCode.GET_BROKER_RUNTIME_INFO:
            self._note_copy(code, "")  # all there is to it; others still have to be applied
        return answer.body

    def _take(self, code: int, body: bytes, take: Callable[[bytes], None]) -> bool:
        """Apply a table, unless the master did not send it; return whether that was done."""
        if not body:
            return False
        try:
            take(body)
        except MqtoolError as error:
            self._note_copy(code, str(error))
            return False
        self._note_copy(code, "")
        return True

    def _note_copy(self, code: int, fault: str) -> None:
        """Note why a table was not copied, or that it was."""
        if fault:
            self._say(f"table {code}", f"a table of the master was not copied (request {code}): {fault}")
            self._not_copied[code] = fault
        else:
            self._said.pop(f"table {code}", None)
            self._not_copied.pop(code, None)
        names: dict[str, list[str]] = {}
        for failed, reason in self._not_copied.items():
            names.setdefault(reason, []).append(_TABLES[RequestCode(failed)])
        self._following.tables_reason = "; ".join(f"{', '.join(tables)}: {reason}" for reason, tables in names.items())

    # Logging

    def _set(self, status: FollowingStatus, reason: str) -> None:
        self._following.status, self._following.reason = status, reason

    def _say(self, about: str, sentence: str) -> None:
        """Log a sentence, unless it repeats the last one."""
        if self._said.get(about) != sentence:
            self._said[about] = sentence
            log.warning("%s", sentence)


def _life_and_extent(info: bytes, address: str) -> tuple[_MasterLife, int, int]:
    with contextlib.suppress(FormatError, KeyError, TypeError, ValueError):
        table = parse_body(info)["table"]
        life = _MasterLife(address, str(table.get("bootTimestamp", "")))
        return life, int(table["commitLogMinOffset"]), int(table["commitLogMaxOffset"])
    return _MasterLife(address, ""), 0, 0


class _HaStream(asyncio.BufferedProtocol):
    """A connection to the HA port of a master."""

    def __init__(
        self, follower: Follower, broker: "BrokerController", clock: Callable[[], int], on_first: Callable[[], None]
    ) -> None:
        self._follower = follower
        self._on_first: Callable[[], None] | None = on_first  # frame of the master
        self._broker = broker
        self._following = broker.following
        self._clock = clock
        self._ended: asyncio.Future[MqtoolError] = asyncio.get_running_loop().create_future()
        self._buffer = memoryview(bytearray(_READ_AT_ONCE))  # one for all that comes: large ones fragment the heap

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        try:
            self._write(self._follower.begin(self._clock()))
        except MqtoolError as error:
            self._end(error)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._ended.done():
            return
        now = self._clock()
        self._following.last_read_timestamp = now
        try:
            self._write(self._follower.receive(self._buffer[:nbytes], now))
        except MqtoolError as error:
            self._end(error)
        else:
            if self._on_first is not None and self._follower.has_frame:
                self._on_first()
                self._on_first = None

    def connection_lost(self, exc: Exception | None) -> None:
        reason = f" ({reason_of(exc)})" if isinstance(exc, OSError) else ""
        self._end(HangUpError(f"the master closed the connection{reason}"))

    async def until_end(self, why_leave: Callable[[], str]) -> None:
        """Send reports while nothing comes, until the connection ends or is abandoned; raises the reason."""
        counted, counted_at = 0, self._clock()
        while not self._ended.done():
            if reason := why_leave():
                self._end(HangUpError(reason))
                break
            now = self._clock()
            try:
                self._write(self._follower.tick(now))
            except MqtoolError as error:
                self._end(error)
                break
            if now - counted_at >= _SPEED_SECONDS * 1000:
                size = self._follower.received_size
                self._following.bytes_per_second = (size - counted) * 1000 // (now - counted_at)
                counted, counted_at = size, now
            seconds = min(_SPEED_SECONDS, max(0.001, (self._follower.next_tick() - now) / 1000))
            await asyncio.wait((self._ended,), timeout=seconds)
        raise self._ended.result()

    def leads_to(self, own_address: str) -> bool:
        """Return whether the other end is the HA port of this broker."""
        peer, own = (self._transport.get_extra_info(end) for end in ("peername", "sockname"))
        if not (peer and own):  # it has ended meanwhile
            return False
        return bool(peer[0] == own[0]) and own_address.endswith(f":{peer[1]}")

    def abort(self) -> None:
        """End it."""
        self._transport.abort()

    def _write(self, report: bytes) -> None:
        if report:
            self._broker.acknowledged.note(self._broker.store.end_offset)
            self._following.last_write_timestamp = self._clock()
            self._transport.write(report)

    def _end(self, error: MqtoolError) -> None:
        if not self._ended.done():
            self._ended.set_result(error)
