"""Queue files rebuilt from the units of ``dispatch``, as a broker without queue files writes them.

The queue offset of a unit determines its place. A queue whose first message does not begin a file is filled up to
it with pre-blank units. (Rules: store.md 4.2, 4.8, 4.9. RocketMQ: ``ConsumeQueue``, ``BatchConsumeQueue``,
``ConsumeQueueExt``.)

Cost: linear in the units; memory holds those of the stretch being written, and one position per queue.
"""

import collections
import dataclasses
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mqtool.engine.store.dispatch import QueueKey, Units
from mqtool.engine.store.file_kinds import BATCH_CONSUME_QUEUE, CONSUME_QUEUE, CONSUME_QUEUE_EXT, QUEUE_KINDS
from mqtool.engine.store.file_queue import FileQueue, segment_name
from mqtool.engine.store.reader import StoreReader
from mqtool.formats import batch_consume_queue, consume_queue, consume_queue_ext
from mqtool.formats import commit_log as log_layout
from mqtool.formats.scan import Ints
from mqtool.formats.topics import is_possible

if TYPE_CHECKING:
    from mqtool.engine.store.disk import Disk

Packed = npt.NDArray[np.void]
"""Units in the layout of a file."""

FOLDERS = tuple(kind.name for kind in QUEUE_KINDS)
PENDING = 16 << 20
"""Bytes of units that wait in memory until they are written, queue by queue."""
_STEP = 4 << 20
_DEFAULT_UNITS = 300_000
_DEFAULT_EXT_SIZE = 50_331_648

_PRE_BLANK = np.zeros(1, consume_queue.UNIT.dtype)
_PRE_BLANK["size"] = consume_queue.PRE_BLANK_SIZE


class UnitBlock(NamedTuple):
    """Consecutive units of one queue."""

    queue: QueueKey
    offset: int  # queue offset of the first message
    stop: int  # of the message after the last
    units: Packed
    store_timestamps: "npt.NDArray[np.int64] | None"  # where there is an extension


class QueueRange(NamedTuple):
    """The offsets of a queue."""

    first: int  # queue offset of its first message
    next: int  # one past that of the last
    units: int


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Bytes of the files of each kind."""

    queue: int
    batch_queue: int
    ext: int

    @classmethod
    def of(cls, reader: StoreReader) -> "Sizes":
        """Return the configured sizes, else those of existing files, else RocketMQ's defaults."""
        sizes = []
        for key, queues, default, unit_size in (
            (
                "mappedFileSizeConsumeQueue",
                reader.consume_queues,
                _DEFAULT_UNITS * consume_queue.UNIT_SIZE,
                consume_queue.UNIT_SIZE,
            ),
            (
                "mapperFileSizeBatchConsumeQueue",
                reader.batch_consume_queues,
                _DEFAULT_UNITS * batch_consume_queue.UNIT_SIZE,
                batch_consume_queue.UNIT_SIZE,
            ),
            ("mappedFileSizeConsumeQueueExt", reader.consume_queue_exts, _DEFAULT_EXT_SIZE, 1),
        ):
            size = reader.config.size(key) or _common_size(queues.values())
            if not size or size % unit_size:
                size = default
                if key == "mappedFileSizeConsumeQueue":
                    tell(reader, f"no queue shows how long its files are: assuming {size:,} bytes ({key})")
            sizes.append(size)
        return cls(*sizes)


def tell(reader: StoreReader, remark: str) -> None:
    """Add a remark, once."""
    if remark not in reader.remarks:
        reader.remarks.append(remark)


def _common_size(queues: Iterable[FileQueue]) -> int:
    counted = collections.Counter(segment.size for queue in queues for segment in queue.segments if segment.size)
    return counted.most_common(1)[0][0] if counted else 0


def pieces_of(
    units: Units,
    batch_topics: Collection[str],
    with_times: bool,
    topics: Collection[str] | None,
    odd: Mapping[str, Ints],
) -> list[UnitBlock]:
    """Pack the units of one table, queue by queue.

    Args:
        units: from ``dispatch``.
        batch_topics: whose queues keep several messages in a unit.
        with_times: for an extension.
        topics: leave out all others; None for all.
        odd: messages that get no unit, for ``Units.without``.
    """
    pieces = []
    for queue, first, last in units.without(odd):
        if topics is not None and queue[0] not in topics:
            continue
        rows = slice(first, last)
        packed = _batch_units(units, rows) if queue[0] in batch_topics else units.packed[rows]
        times = units.store_timestamp[rows] if with_times else None
        stop = int(units.queue_offset[last - 1]) + int(units.batch_size[last - 1])  # may be one past what 8 bytes hold
        pieces.append(UnitBlock(queue, int(units.queue_offset[first]), stop, packed, times))
    return pieces


def _batch_units(units: Units, rows: slice) -> Packed:
    packed = np.zeros(rows.stop - rows.start, batch_consume_queue.UNIT.dtype)
    for name in ("physical_offset", "size", "tags_code", "store_timestamp", "queue_offset", "batch_size"):
        packed[name] = getattr(units, name)[rows]
    packed["compacted_offset"] = -1
    return packed


class _FixedSizeFiles:
    """Consecutive bytes, written into files of equal size, each created when it is reached."""

    def __init__(self, disk: "Disk", folder: Path, file_size: int) -> None:
        self.disk = disk
        self.folder = folder
        self.file_size = file_size
        self.paths: list[Path] = []
        self._made: set[int] = set()

    def write(self, at: int, data: bytes) -> None:
        """Write ``data`` at an address."""
        done = 0
        while done < len(data):
            start, position = divmod(at + done, self.file_size)
            count = min(len(data) - done, self.file_size - position)
            self.disk.write(self._file(start * self.file_size), position, data[done : done + count])
            done += count

    def _file(self, start: int) -> Path:
        path = self.folder / segment_name(start)
        if start not in self._made:
            self.disk.create(path, self.file_size)
            self._made.add(start)
            self.paths.append(path)
        return path


_ONE_SHORT = -1
"""Replaces the number of holes before a queue's last message if the message due next states another place."""


class _Queue:
    """One queue that is being written."""

    def __init__(self, files: _FixedSizeFiles, offset: int, unit_size: int) -> None:
        self.files = files
        self.unit_size = unit_size
        self.first = offset
        self.next = offset  # queue offset
        self.units = 0
        self.pending: list[Packed] = []
        self.held: UnitBlock | None = None  # out of order: the next messages show where it belongs
        self.held_is_in_place = True
        self.holes = 0  # of the log, before its last message
        self.ext: _Ext | None = None
        self.at = 0  # where the pending units belong
        if unit_size == consume_queue.UNIT_SIZE:
            self.at = offset * unit_size
            blank = self.at % files.file_size
            if blank:
                self.at -= blank
                self.pending.append(_filler(blank // unit_size))

    def write(self) -> None:
        """Write pending units."""
        pending, self.pending = self.pending, []
        for data in _joined(pending):
            self.files.write(self.at, data)
            self.at += len(data)


def _filler(count: int) -> Packed:
    """Return pre-blank units that take no memory."""
    return np.broadcast_to(_PRE_BLANK, count)


def _joined(pieces: Iterable[Packed]) -> Iterator[bytes]:
    """Yield the concatenated bytes of units, some MiB at a time."""
    waiting: list[bytes] = []
    size = 0
    for piece in pieces:
        step = _STEP // piece.itemsize
        for start in range(0, len(piece), step):
            waiting.append(piece[start : start + step].tobytes())
            size += len(waiting[-1])
            if size >= _STEP:
                yield b"".join(waiting)
                waiting, size = [], 0
    if waiting:
        yield b"".join(waiting)


class _Ext:
    """The extension of one queue: separate units, whose addresses replace tags codes."""

    def __init__(self, files: _FixedSizeFiles, reader: StoreReader, queue: QueueKey) -> None:
        self.files = files
        self._old = reader.consume_queue_exts.get(queue)
        self._old_queue = reader.consume_queues.get(queue)
        self._at = 0

    def add(self, piece: UnitBlock) -> Packed:
        """Write a unit for each message; return the queue's units with the addresses of these."""
        assert piece.store_timestamps is not None
        heads = np.zeros(len(piece.units), consume_queue_ext.HEAD.dtype)
        heads["tags_code"] = piece.units["tags_code"]
        heads["store_timestamp"] = piece.store_timestamps
        bit_maps = self._bit_maps(piece, heads)
        heads["bit_map_size"] = [len(bits) for bits in bit_maps]
        heads["size"] = heads["bit_map_size"] + consume_queue_ext.MIN_SIZE
        addresses, start, data = [], self._at, bytearray()
        for head, bits in zip(heads, bit_maps, strict=True):
            left = self.files.file_size - self._at % self.files.file_size
            size = consume_queue_ext.MIN_SIZE + len(bits)
            if size + consume_queue_ext.END_SIZE > left:
                self.files.write(start, bytes(data) + consume_queue_ext.END.to_bytes(2, "big", signed=True))
                self._at += left
                start, data = self._at, bytearray()
            addresses.append(consume_queue_ext.address_of(self._at))
            data += head.tobytes() + bits
            self._at += size
        self.files.write(start, bytes(data))
        units = piece.units.copy()
        units["tags_code"] = addresses
        return units

    def _bit_maps(self, piece: UnitBlock, heads: Packed) -> list[bytes]:
        """Return the bits of SQL filters, which are known only from an old unit of the same message."""
        if self._old is None or self._old_queue is None:
            return [b""] * len(heads)
        old = self._old_queue.units(piece.offset, piece.offset + len(heads))
        same = old["physical_offset"] == piece.units["physical_offset"]
        codes: list[int] = np.where(same, old["tags_code"], 0).tolist()
        return [
            self._bit_map(code, head) if consume_queue_ext.is_address(code) else b""
            for code, head in zip(codes, heads, strict=True)
        ]

    def _bit_map(self, code: int, head: Any) -> bytes:
        assert self._old is not None
        old = self._old.unit_at(code)
        if (
            old is None
            or old["tags_code"][0] != head["tags_code"]
            or old["store_timestamp"][0] != head["store_timestamp"]
        ):
            return b""
        size = int(old["bit_map_size"][0])
        if size <= 0 or size != int(old["size"][0]) - consume_queue_ext.MIN_SIZE:
            return b""
        bits = self._old.read(consume_queue_ext.position_of(code) + consume_queue_ext.MIN_SIZE, size)
        return bits if len(bits) == size else b""


class QueueBuilder:
    """Takes the units of a log in order and writes the files of all queues.

    Offsets of a queue are consecutive. If an offset was seen before, its message gets no unit (``unplaced``).
    If one jumps ahead, messages are lost if a stretch of the log is, if an earlier one may have had the place and
    states another, if later messages continue from there, or if the existing queue has the last message there:
    pre-blank units replace them (``filled``), so that all others keep their offsets. Otherwise the number is damaged,
    and its message gets the next place, as in brokers.
    """

    def __init__(
        self,
        reader: StoreReader,
        into: Path,
        disk: "Disk",
        sizes: Sizes,
        batch_topics: Collection[str] = (),
        pool: ThreadPoolExecutor | None = None,
        jobs: int = 1,
    ) -> None:
        self.queues: dict[QueueKey, _Queue] = {}
        self.unplaced: collections.Counter[QueueKey] = collections.Counter()
        self.filled: collections.Counter[str] = collections.Counter()  # whose places are filled
        self.gaps: dict[QueueKey, list[tuple[int, int]]] = {}  # these places
        self.ext = has_ext(reader)
        self._reader = reader
        self._into = into
        self._disk = disk
        self._sizes = sizes
        self._batch_topics = batch_topics
        self._pool = pool
        self._jobs = jobs
        self._pending = 0
        self._writing: list[Future[None]] = []
        self._folders: dict[Path, None] = {}  # made
        self._holes = 0
        self._torn = False
        self._in_place = True
        self._firsts: dict[
            QueueKey, tuple[UnitBlock, int, bool]
        ] = {}  # holes before them, and whether they are in place
        self._most = reader.commit_log.total_size // log_layout.MIN_SIZE

    def add(self, pieces: Sequence[UnitBlock], torn: bool = False, in_place: bool = True) -> None:
        """Take the next units of the log.

        Args:
            pieces: the units.
            torn: records between them, or after the last, cannot be read.
            in_place: their records are at their stated addresses.
        """
        self._torn, self._in_place = torn, in_place
        for piece in pieces:
            queue = self.queues.get(piece.queue) or self._second(piece, in_place)
            if queue is None:
                continue
            if queue.held is not None or piece.offset != queue.next:
                self._out_of_order(queue, piece)
            else:
                self._append(queue, piece)
        if torn:
            self.shake()
        if self._pending >= PENDING:
            self.flush()

    def _second(self, piece: UnitBlock, in_place: bool) -> _Queue | None:
        """Begin a queue with its first piece, now that the second one shows whether its offset is damaged."""
        if piece.queue not in self._firsts:
            if self._is_possible(piece):
                self._firsts[piece.queue] = piece, self._holes, in_place
            else:
                self.unplaced[piece.queue] += len(piece.units)
            return None
        first, holes, was_in_place = self._firsts.pop(piece.queue)
        if len(first.units) == 1 and 0 <= piece.offset < first.offset:
            # The number of a record from elsewhere is right; the number of a batch is also in its messages.
            if piece.offset == 0 or not was_in_place or first.queue[0] in self._batch_topics:
                self.unplaced[first.queue] += 1
                self._firsts[piece.queue] = piece, self._holes, in_place
                return None
            first = first._replace(offset=piece.offset - 1, stop=piece.offset)
        return self._begin(first, holes)

    def ranges(self) -> dict[QueueKey, QueueRange]:
        """Return the offsets of each queue."""
        return {key: QueueRange(queue.first, queue.next, queue.units) for key, queue in self.queues.items()}

    def kinds(self) -> set[str]:
        """Return the folders that are not empty."""
        batches = {queue.unit_size != consume_queue.UNIT_SIZE for queue in self.queues.values()}
        return {folder_of(is_batch) for is_batch in batches} | {
            CONSUME_QUEUE_EXT.name for queue in self.queues.values() if queue.ext is not None
        }

    def shake(self) -> None:
        """Note that a stretch of the log was lost here, and with it messages of any queue."""
        self._holes += 1

    def _is_possible(self, piece: UnitBlock) -> bool:
        end = (piece.offset + len(piece.units)) * consume_queue.UNIT_SIZE
        return (
            piece.queue[0] != ""
            and is_possible(piece.queue[0].encode())
            and piece.queue[1] >= 0
            and piece.offset >= 0
            and end < 1 << 63
        )

    def _begin(self, piece: UnitBlock, holes: int) -> _Queue:
        is_batch = piece.queue[0] in self._batch_topics
        size = self._sizes.batch_queue if is_batch else self._sizes.queue
        files = _FixedSizeFiles(self._disk, self._folder(folder_of(is_batch), piece.queue), size)
        queue = self.queues[piece.queue] = _Queue(files, piece.offset, piece.units.itemsize)
        if self.ext and not is_batch:
            folder = self._folder("consumequeue_ext", piece.queue)
            queue.ext = _Ext(_FixedSizeFiles(self._disk, folder, self._sizes.ext), self._reader, piece.queue)
        self._append(queue, piece)
        queue.holes = holes
        return queue

    def _folder(self, kind: str, queue: QueueKey) -> Path:
        path = self._into
        for name in (kind, queue[0], str(queue[1])):
            path /= name
            if path not in self._folders and not path.exists():
                self._disk.make_folder(path)
            self._folders[path] = None
        return path

    def _append(self, queue: _Queue, piece: UnitBlock) -> None:
        queue.pending.append(piece.units if queue.ext is None else queue.ext.add(piece))
        queue.next += piece.stop - piece.offset
        queue.holes = self._holes
        queue.units += len(piece.units)
        self._pending += piece.units.nbytes

    def _out_of_order(self, queue: _Queue, piece: UnitBlock) -> None:
        held, queue.held = queue.held, None
        if held is not None:
            if piece.offset == queue.next:
                self.unplaced[held.queue] += len(held.units)
            elif piece.offset == queue.next + held.stop - held.offset:
                # Of a batch the messages have the damaged number, whatever its unit says; and the number of a record
                # that says that it belongs elsewhere is right: it is a copy over the message of this place.
                if held.queue[0] in self._batch_topics or not queue.held_is_in_place:
                    self.unplaced[held.queue] += held.stop - held.offset
                else:
                    self._append(queue, held)
            else:
                self._place(queue, held)
        is_alone = len(piece.units) == 1  # else those after it confirm its offset
        if is_alone and piece.offset > queue.next and queue.holes == self._holes and not self._torn:
            queue.held, queue.held_is_in_place = piece, self._in_place
        else:
            self._place(queue, piece)

    def _is_confirmed(self, held: UnitBlock) -> bool:
        """Return whether the existing queue has a message at the offset that it states."""
        old = self._reader.consume_queues.get(held.queue)
        return old is not None and old.address_at(held.offset) == held.units["physical_offset"][0]

    def _place(self, queue: _Queue, piece: UnitBlock) -> None:
        """Put units in the places of their offsets, as far as these are free."""
        is_batch = queue.unit_size != consume_queue.UNIT_SIZE
        if piece.offset < queue.next:
            blocked = len(piece.units) if is_batch else min(queue.next - piece.offset, len(piece.units))
            self.unplaced[piece.queue] += blocked
            piece = _behind(piece, blocked)
        if not len(piece.units):
            queue.holes = _ONE_SHORT
            return
        missing = piece.offset - queue.next
        if 0 < missing <= self._most:
            if not is_batch:
                queue.pending.append(_filler(missing))
            self.filled[piece.queue[0]] += missing
            self.gaps.setdefault(piece.queue, []).append((queue.next, queue.next + missing))
            queue.next += missing
        self._append(queue, piece)

    def flush(self) -> None:
        """Pass all pending units to threads that write them, after waiting for the previous threads."""
        self._wait()
        queues = [queue for queue in self.queues.values() if queue.pending]
        self._pending = 0
        for number in range(self._jobs):
            self._start(_write_all, queues[number :: self._jobs])

    def _start(self, work: Callable[..., None], *arguments: Any) -> None:
        if self._pool is None:
            work(*arguments)
        else:
            self._writing.append(self._pool.submit(work, *arguments))

    def _wait(self) -> None:
        writing, self._writing = self._writing, []
        for future in writing:
            future.result()

    def finish(self) -> None:
        """Write and sync everything."""
        for first, holes, _ in self._firsts.values():
            self._begin(first, holes)
        self._firsts.clear()
        for queue in self.queues.values():
            held, queue.held = queue.held, None
            if held is not None and (held.queue[0] in self._batch_topics or self._is_confirmed(held)):
                self._place(queue, held)
            elif held is not None:
                self._append(queue, held)
        self.flush()
        self._wait()
        for queue in self.queues.values():
            for path in itertools.chain(queue.files.paths, queue.ext.files.paths if queue.ext else ()):
                self._start(self._disk.sync, path)
        self._wait()
        for folder in reversed(self._folders):
            self._start(self._disk.sync_folder, folder)
        self._wait()


def _write_all(queues: Sequence[_Queue]) -> None:
    for queue in queues:
        queue.write()


def _behind(piece: UnitBlock, count: int) -> UnitBlock:
    """Return a piece without its first units, of one message each."""
    times = None if piece.store_timestamps is None else piece.store_timestamps[count:]
    return UnitBlock(piece.queue, piece.offset + count, piece.stop, piece.units[count:], times)


def folder_of(is_batch: bool) -> str:
    """Return the folder of queues that keep several messages in a unit, or of the others."""
    return (BATCH_CONSUME_QUEUE if is_batch else CONSUME_QUEUE).name


def has_ext(reader: StoreReader) -> bool:
    """Return whether queues of this store have extensions."""
    if "enableConsumeQueueExt" in reader.config.settings:
        return reader.config.flag("enableConsumeQueueExt")
    return bool(reader.consume_queue_exts)
