"""What a master has lost and its slaves have: it is copied back before the master accepts messages.

A slave gets bytes before they are flushed. After a power failure the log of a master may end before those of its
slaves, and new messages would be at addresses where they have others, so that they could no longer follow it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING

from mqtool.engine.other_log import Connect, NotToldError, OtherLog
from mqtool.engine.replication.comparing import COMPARED_RECORDS, Extent, RecordPrefix, to_compare
from mqtool.errors import FormatError, UnavailableError
from mqtool.formats.bodies import parse_body
from mqtool.formats.codes import RequestCode
from mqtool.formats.commit_log import BLANK_SIZE
from mqtool.formats.record_head import blank

if TYPE_CHECKING:
    from mqtool.engine.remoting.client import RemotingClient
    from mqtool.engine.store.message_store import MessageStore

log = logging.getLogger(__name__)

_WAIT_SECONDS = 15.0
"""How long to wait for a slave: one without a master registers every few seconds."""
_LOOK_SECONDS = 0.5
_MAX_BLANK = 64 << 20


async def take_missing_tail(
    store: "MessageStore",
    slaves: Callable[[], Awaitable[Collection[str]]],
    connect: Connect,
    *,
    is_short: bool,
) -> None:
    """Append what slaves have beyond the end of a master's log; logs possible losses.

    Args:
        store: of a master that was not stopped cleanly, and does not accept messages yet.
        slaves: returns the known addresses of its slaves.
        connect: returns a client of one of them.
        is_short: the log probably lacks messages: wait for a slave.

    Raises:
        WriteError: the disk fails.
        BadDataError: what a slave has after that are not messages.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + (_WAIT_SECONDS if is_short else 0)
    begin, answered, failures = store.end_offset, set[str](), dict[str, str]()
    while True:
        is_any_silent = False
        for address in sorted({*await slaves()} - answered):
            try:
                await _take_from(store, connect(address))
                answered.add(address)
            except NotToldError as error:
                failures[address] = str(error)
            except UnavailableError as error:
                is_any_silent = True
                if is_short:
                    failures[address] = str(error)
        if (answered and not is_any_silent) or loop.time() >= deadline:
            break
        await asyncio.sleep(_LOOK_SECONDS)
    if size := store.end_offset - begin:
        log.warning("fetching %s bytes from slaves that were lost here, from %s on", f"{size:,}", f"{begin:,}")
        await asyncio.to_thread(store.flush)
    for address in sorted(failures.keys() - answered):
        log.warning(
            "slave %s: %s; messages that only it has are lost, and it may not follow", address, failures[address]
        )
    if is_short and not answered:
        log.warning(
            "the log may have lost its end when the machine stopped, and no slave has answered within %.0f s: "
            "messages that were acknowledged after %s may be lost, and a slave that has them will not follow",
            _WAIT_SECONDS,
            f"{begin:,}",
        )


async def _take_from(store: "MessageStore", client: "RemotingClient") -> None:
    """Append what one slave has beyond the end of the log.

    Raises:
        NotToldError: it refuses, or has another log.
        UnavailableError: it cannot be reached.
        BadDataError: what it has are not messages.
        WriteError: the disk fails.
    """
    try:
        slave = OtherLog(client)
        extent = await _extent_of(slave)
        end = extent.end_offset
        if end <= store.end_offset:
            return
        pieces = to_compare([RecordPrefix(*record) for record in store.last_records(COMPARED_RECORDS)], extent)
        if not pieces:
            raise NotToldError("the two have no message in common")
        for piece in pieces:
            if await slave.record(piece.physical_offset) != piece.data:
                raise NotToldError(f"at {piece.physical_offset:,} it has a different message")
        while (at := store.end_offset) < end:
            data = await slave.record(at) or await _blank(store, slave, at, end)
            if not data:
                break
            store.append_bytes(at, data)
    finally:
        await client.close()


async def _extent_of(slave: OtherLog) -> Extent:
    info = await slave.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
    try:
        table = parse_body(info.body)["table"]
        return Extent(int(table["commitLogMinOffset"]), int(table["commitLogMaxOffset"]), 0)
    except (FormatError, KeyError, TypeError, ValueError) as error:
        raise NotToldError("it does not report the start and end of its log") from error


async def _blank(store: "MessageStore", slave: OtherLog, at: int, end: int) -> bytes:
    """Return the unused end of a segment, where a slave has a message in the next; b"" where it has none."""
    size = store.log.file_size - at % store.log.file_size
    if not BLANK_SIZE <= size <= _MAX_BLANK or at + size >= end or not await slave.record(at + size):
        return b""
    return blank(size) + bytes(size - BLANK_SIZE)
