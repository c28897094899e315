"""A slave at work: it finds its master, compares the logs, appends what comes, and copies the master's tables.

The rules of the stream stand in ``replication/follower.py``, of the comparison in ``replication/comparing.py``; here
they meet sockets and the clock. (Rules: replication.md 2.5, 5, 6. RocketMQ: ``DefaultHAClient``, ``SlaveSynchronize``.)
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, cast

from mqtool.engine.broker.following import FollowingStatus
from mqtool.engine.broker.kept_role import EPOCH
from mqtool.engine.registrar import Registrar
from mqtool.engine.remoting.client import RemotingClient
from mqtool.engine.replication.comparing import (
    COMPARED_RECORDS,
    Blocks,
    Extent,
    Piece,
    find_fork,
    misfit_of_extents,
    misfit_of_piece,
    to_compare,
)
from mqtool.engine.replication.follower import Follower, HangUpError
from mqtool.engine.store.disk import DiskFullError
from mqtool.engine.streams.reasons import reason_of
from mqtool.errors import FormatError, MqtoolError, UnavailableError, UsageError
from mqtool.formats.bodies import parse_body
from mqtool.formats.codes import RequestCode, ResponseCode
from mqtool.formats.headers import LogBlocks, ViewMessage, build_header
from mqtool.formats.remoting import RemotingCommand
from mqtool.formats.settings import parse_settings
from mqtool.formats.signing import Credentials

if TYPE_CHECKING:
    from mqtool.engine.broker.broker import Broker

log = logging.getLogger(__name__)

FAST_PORT_DISTANCE = 2
"""How far below its own the port lies on which a master answers the requests that must not wait behind others."""
_CONNECT_SECONDS = 3.0
_AGAIN_SECONDS = (1.0, 2.0, 5.0)
"""How long to wait after a connection was lost, the first time, the second, and from then on."""
_LOOK_AGAIN_SECONDS = 10.0
"""How long to wait until the logs are compared again where they did not fit, or the disk was full."""
_SPEED_SECONDS = 1.0
_LOOK_SECONDS = 0.1
_CREDENTIALS = "innerClientAuthenticationCredentials"


def credentials_of(text: str) -> Credentials | None:
    """Return the account that a slave's requests are signed with (``innerClientAuthenticationCredentials``).

    >>> credentials_of('{"accessKey": "slave", "secretKey": "12345678"}')
    Credentials(access_key='slave', secret_key='12345678')

    Raises:
        UsageError: the setting names none.
    """
    if not text.strip():
        return None
    with contextlib.suppress(ValueError, KeyError, TypeError):
        members = json.loads(text)
        return Credentials(str(members["accessKey"]), str(members["secretKey"]))
    raise UsageError(f'{_CREDENTIALS}: what is expected is {{"accessKey": "..", "secretKey": ".."}}')


class StoppedError(MqtoolError):
    """The log is not the beginning of the master's: replicating would damage it."""


class Slave:
    """Keeps the store of a broker a copy of its master's, from ``start`` to ``stop``."""

    def __init__(self, broker: "Broker", registrar: Registrar, clock: Callable[[], int]) -> None:
        """Make one; nothing is asked yet.

        Raises:
            UsageError: a setting makes no sense.
        """
        self._broker = broker
        self._store = broker.store
        self._following = broker.following
        self._registrar = registrar
        self._clock = clock
        self._credentials = credentials_of(broker.settings.inner_credentials)
        self._client: RemotingClient | None = None
        self._masters: Extent | None = None
        self._has_copied = asyncio.Event()
        self._late: tuple[int, bytes, bytes] | None = None
        """Offsets of consumers and of delay levels that wait until this log has come to where the master's was."""
        self._said: dict[str, str] = {}  # what was last logged, by what it is about

    def start(self) -> None:
        """Begin to follow."""
        settings = self._broker.settings
        if not settings.slave_read_enabled:
            log.warning("slaveReadEnable=false: no consumer can read from this slave, also while its master is away")
        self._tasks = [asyncio.create_task(self._guarded(work)) for work in (self._follow_on, self._copy_on)]

    async def stop(self) -> None:
        """Follow no more, and return when nothing is under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._client:
            await self._client.close()

    async def _guarded(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Have work begin again that a fault has ended: a slave that replicates nothing must not look as if it did."""
        while True:
            try:
                await work()
            except Exception:
                log.exception("replication: a fault of this program")
                self._set(FollowingStatus.STOPPED, "a fault of this program, which its log tells")
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
                self._say("log", f"replication has stopped: this log does not fit that of the master: {error}")
                self._set(FollowingStatus.STOPPED, str(error))
                await self._wait(_LOOK_AGAIN_SECONDS)
            except DiskFullError as error:
                self._say("log", f"replication has stopped until there is room: {error}")
                self._set(FollowingStatus.STOPPED, str(error))
                await self._wait(_LOOK_AGAIN_SECONDS)
            except (HangUpError, UnavailableError) as error:
                self._say("log", f"the log of {self._following.ha_address} is not followed: {error}; it is tried again")
                self._set(FollowingStatus.SEARCHING, str(error))
                losses = 0 if self._clock() - begun > _LOOK_AGAIN_SECONDS * 1000 else losses + 1
                self._registrar.register_soon()
                await asyncio.sleep(_AGAIN_SECONDS[min(losses, len(_AGAIN_SECONDS)) - 1])
            except MqtoolError as error:
                self._say("log", f"replication has stopped: {error}")
                self._set(FollowingStatus.STOPPED, str(error))
                await self._wait(_LOOK_AGAIN_SECONDS)

    async def _wait(self, seconds: float) -> None:
        """Wait a while, or until another master is known."""
        before = self._registrar.master
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._registrar.master == before:
                    await self._registrar.master_changed()

    async def _until_master_is_known(self) -> None:
        """Return when the name server has named a master, and others have its address."""
        settings, registrar, following = self._broker.settings, self._registrar, self._following
        while registrar.master is None or not (registrar.master.ha_address or settings.ha_master_address):
            if settings.ha_master_address and registrar.master is None:
                break  # its tables and contents cannot be asked for, but its log can be had
            has_none = registrar.master is None
            why = "no name server knows its master" if has_none else "its master has registered no port for slaves"
            self._set(FollowingStatus.SEARCHING, why)
            await registrar.master_changed()
        master = registrar.master
        following.master_address = master.address if master else ""
        following.ha_address = settings.ha_master_address or (master.ha_address if master else "")

    async def _until_tables_are_copied(self) -> None:
        """Wait for the first copy, or its failure: what topics are like decides how their queues are kept."""
        if self._following.master_address:
            await self._has_copied.wait()

    async def _follow(self) -> None:
        """Follow over one connection until it ends, which is always an error."""
        settings, following, store = self._broker.settings, self._following, self._store
        host, colon, port = following.ha_address.rpartition(":")
        if not colon or not port.isdecimal():
            raise UnavailableError(f"{following.ha_address} is no address of the form host:port")
        first_bytes = await self._first_bytes() if settings.starts_at_first_byte else None
        follower = Follower(
            store,
            self._clock(),
            report_interval_ms=settings.ha_heartbeat_ms,
            silence_ms=settings.ha_housekeeping_ms,
            first_bytes=first_bytes,
        )
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                _, stream = await asyncio.get_running_loop().create_connection(
                    lambda: _Stream(follower, self._broker, self._clock), host.strip("[]"), int(port)
                )
        except OSError as error:
            raise UnavailableError(f"cannot connect to {following.ha_address} ({reason_of(error)})") from error
        except TimeoutError:
            raise UnavailableError(f"{following.ha_address} cannot be reached") from None
        self._set(FollowingStatus.FOLLOWING, "")
        log.info("following %s from %s on", following.ha_address, f"{store.end_offset:,}")
        self._said.pop("log", None)
        try:
            await stream.until_end()
        finally:
            following.bytes_per_second = 0
            stream.abort()

    async def _first_bytes(self) -> bytes | None:
        """Return what an empty slave cannot ask the stream for, if it is to have the whole log."""
        extent = self._masters
        if self._store.end_offset or extent is None or not extent.end_offset:
            return None
        if extent.start_offset:
            return b""
        try:
            record = await self._record_of_master(0)
        except _NotAskedError as error:
            raise UnavailableError(f"its first message cannot be asked for: {error}") from error
        if record is None:
            raise UnavailableError("its first message cannot be asked for")
        return record

    # Comparing

    async def _compare(self) -> None:
        """See that the log is the beginning of the master's, as far as that can be told.

        Raises:
            StoppedError: it is not.
            MqtoolError: the disk fails.
        """
        store, following = self._store, self._following
        self._masters = None
        if not following.master_address:
            return self._leave_unchecked("no name server knows the address of its broker")
        try:
            masters = self._masters = await self._extent_of_master()
            if store.end_offset > masters.end_offset:
                store.cut_blank(masters.end_offset)
            ours = Extent(store.log.min_offset, store.end_offset, store.log.file_size)
            if misfit := misfit_of_extents(ours, masters):
                raise StoppedError(misfit + await self._fork(ours, masters))
            pieces = [Piece(*piece) for piece in store.last_records(COMPARED_RECORDS)]
            pieces = to_compare(pieces, masters)
            records = await asyncio.gather(*(self._record_of_master(piece.physical_offset) for piece in pieces))
        except (UnavailableError, _NotAskedError) as error:
            return self._leave_unchecked(str(error))
        for piece, record in zip(pieces, records, strict=True):
            if misfit := misfit_of_piece(piece, record):
                raise StoppedError(misfit + await self._fork(ours, masters))
        following.unchecked = ""
        return None

    async def _fork(self, ours: Extent, masters: Extent) -> str:
        """Return what to say of where the logs part; nothing where the master, one of RocketMQ, cannot tell."""
        start, end = max(ours.start_offset, masters.start_offset), min(ours.end_offset, masters.end_offset)
        if start >= end or ours.segment_size != masters.segment_size:
            return ""
        search, same = find_fork(start, end), None
        try:
            while True:
                blocks = next(search) if same is None else search.send(same)
                same = await self._are_same(blocks)
        except StopIteration as found:
            at = found.value
        except (UnavailableError, _NotAskedError):
            return ""
        if at < end:
            at = self._store.start_of_record(at)
        size = ours.end_offset - at
        return f"; up to {at:,} both are the same, and {size:,} bytes behind that are this broker's own"

    async def _are_same(self, blocks: Blocks) -> list[bool]:
        fields = build_header(LogBlocks(*blocks))
        answer = await self._invoke(RemotingCommand(RequestCode.GET_LOG_CHECKSUMS, ext_fields=fields))
        if answer.code != ResponseCode.SUCCESS:
            raise _NotAskedError(f"it refuses request {RequestCode.GET_LOG_CHECKSUMS}: {answer.remark}")
        try:
            theirs = [int(one) for one in parse_body(answer.body)["checksums"]]
        except (FormatError, KeyError, TypeError, ValueError) as error:
            raise _NotAskedError("the master does not tell checksums of its log") from error
        ours = [self._store.checksum(at, size) for at, size in blocks.places()]
        if len(theirs) != len(ours):
            raise _NotAskedError("the master does not tell checksums of its log")
        return [mine == its for mine, its in zip(ours, theirs, strict=True)]

    def _leave_unchecked(self, reason: str) -> None:
        self._following.unchecked = reason
        self._say("check", f"whether this log fits that of its master is unchecked: {reason}")

    async def _extent_of_master(self) -> Extent:
        info = await self._ask(RequestCode.GET_BROKER_RUNTIME_INFO)
        config = await self._ask(RequestCode.GET_BROKER_CONFIG)
        try:
            table = parse_body(info.body)["table"]
            start, end = int(table["commitLogMinOffset"]), int(table["commitLogMaxOffset"])
            settings = parse_settings(config.body.decode("utf-8", "replace"))
            size = int(settings.get("mappedFileSizeCommitLog", 0))
            self._broker.role_changes.learn(int(table.get(EPOCH, 0)))
        except (FormatError, KeyError, TypeError, ValueError) as error:
            raise _NotAskedError("the master does not tell the ends of its log") from error
        return Extent(max(0, start), end, size)

    async def _record_of_master(self, at: int) -> bytes | None:
        """Return the record that the master has at an address, None where it has none."""
        fields = build_header(ViewMessage(at))
        answer = await self._invoke(RemotingCommand(RequestCode.VIEW_MESSAGE_BY_ID, ext_fields=fields))
        if answer.code == ResponseCode.SUCCESS:
            return answer.body
        if answer.code == ResponseCode.SYSTEM_ERROR and "can not find message" in (answer.remark or ""):
            return None
        raise _NotAskedError(f"it refuses request {RequestCode.VIEW_MESSAGE_BY_ID}: {answer.remark}")

    async def _ask(self, code: int) -> RemotingCommand:
        answer = await self._invoke(RemotingCommand(code))
        if answer.code != ResponseCode.SUCCESS:
            raise _NotAskedError(f"it refuses request {code}: {answer.remark}")
        return answer

    async def _invoke(self, command: RemotingCommand) -> RemotingCommand:
        return await self._client_of_master().invoke(command)

    def _client_of_master(self) -> RemotingClient:
        address = self._following.master_address
        if self._client is None or self._client.addresses != [address]:
            old, self._client = self._client, RemotingClient([address], credentials=self._credentials)
            if old:
                self._closing = asyncio.create_task(old.close())
        return self._client

    # Tables

    async def _copy_on(self) -> None:
        while True:
            if (master := self._registrar.master) is not None and master.address not in ("", self._broker.address):
                await self._copy(master.address)
                self._has_copied.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._broker.settings.copy_interval_ms / 1000):
                    await self._until_late_are_due()
                    await self._registrar.master_changed()

    async def _until_late_are_due(self) -> None:
        """Take over the offsets that wait, when their messages are here: what is done by them must not be lost."""
        while self._late is not None:
            end, offsets, delay_offsets = self._late
            if self._store.end_offset >= end:
                tables = self._broker.copied_tables
                self._take(RequestCode.GET_ALL_CONSUMER_OFFSET, offsets, tables.take_offsets)
                self._take(RequestCode.GET_ALL_DELAY_OFFSET, delay_offsets, tables.take_delay_offsets)
                self._following.copied_timestamp = self._clock()
                self._late = None
            else:
                await asyncio.sleep(_LOOK_SECONDS)

    async def _copy(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        fast = f"{host}:{int(port) - FAST_PORT_DISTANCE}" if port.isdecimal() else address
        tables = self._broker.copied_tables
        async with contextlib.AsyncExitStack() as stack:
            client = RemotingClient([address], credentials=self._credentials)
            stack.push_async_callback(client.close)
            fast_client = RemotingClient([fast, address], credentials=self._credentials)
            stack.push_async_callback(fast_client.close)
            await self._copy_one(fast_client, RequestCode.GET_ALL_TOPIC_CONFIG, tables.take_topics)
            if self._late is None:
                offsets = await self._body(client, RequestCode.GET_ALL_CONSUMER_OFFSET)
                delay_offsets = await self._body(client, RequestCode.GET_ALL_DELAY_OFFSET)
                self._late = await self._end_of(client), offsets, delay_offsets
            await self._copy_one(client, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, tables.take_groups)
            await self._copy_one(client, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, tables.take_request_modes)

    async def _end_of(self, client: RemotingClient) -> int:
        """Return where the log of a master ends, 0 where it does not say."""
        info = await self._body(client, RequestCode.GET_BROKER_RUNTIME_INFO)
        with contextlib.suppress(FormatError, KeyError, TypeError, ValueError):
            return int(parse_body(info)["table"]["commitLogMaxOffset"])
        return 0

    async def _copy_one(self, client: RemotingClient, code: int, take: Callable[[bytes], None]) -> None:
        self._take(code, await self._body(client, code), take)

    async def _body(self, client: RemotingClient, code: int) -> bytes:
        """Return what answers a request, b"" where nothing does."""
        try:
            answer = await client.invoke(RemotingCommand(code))
        except MqtoolError as error:
            self._say(f"table {code}", f"a table of the master is not copied (request {code}): {error}")
            return b""
        if answer.code != ResponseCode.SUCCESS:
            if answer.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:  # 4.9 does not know all of them
                self._say(f"table {code}", f"a table of the master is not copied (request {code}): {answer.remark}")
            return b""
        return answer.body

    def _take(self, code: int, body: bytes, take: Callable[[bytes], None]) -> None:
        if body:
            try:
                take(body)
                self._said.pop(f"table {code}", None)
            except MqtoolError as error:
                self._say(f"table {code}", f"a table of the master is not copied (request {code}): {error}")

    # What is told

    def _set(self, status: FollowingStatus, reason: str) -> None:
        self._following.status, self._following.reason = status, reason

    def _say(self, about: str, sentence: str) -> None:
        """Log a sentence, once until something else is to be said."""
        if self._said.get(about) != sentence:
            self._said[about] = sentence
            log.warning("%s", sentence)


class _NotAskedError(MqtoolError):
    """The master does not tell what was asked."""


class _Stream(asyncio.Protocol):
    """A connection to the HA port of a master."""

    def __init__(self, follower: Follower, broker: "Broker", clock: Callable[[], int]) -> None:
        self._follower = follower
        self._broker = broker
        self._following = broker.following
        self._clock = clock
        self._ended: asyncio.Future[MqtoolError] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._write(self._follower.begin(self._clock()))

    def data_received(self, data: bytes) -> None:
        if self._ended.done():
            return
        now = self._clock()
        self._following.last_read_timestamp = now
        try:
            self._write(self._follower.receive(data, now))
        except MqtoolError as error:
            self._end(error)

    def connection_lost(self, exc: Exception | None) -> None:
        reason = f" ({reason_of(exc)})" if isinstance(exc, OSError) else ""
        self._end(HangUpError(f"the master has closed the connection{reason}"))

    async def until_end(self) -> None:
        """Report when nothing comes, until the connection ends; raises why it has."""
        counted, counted_at = 0, self._clock()
        while not self._ended.done():
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

    def abort(self) -> None:
        """End it."""
        self._transport.abort()

    def _write(self, report: bytes) -> None:
        if report:
            self._following.last_write_timestamp = self._clock()
            self._transport.write(report)

    def _end(self, error: MqtoolError) -> None:
        if not self._ended.done():
            self._ended.set_result(error)
