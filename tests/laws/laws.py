"""The laws, each held against what one case came to; the judge reads the stores, mqtool's own code judges nothing.

- conservation: what was sound and reachable is there afterwards, under its queue and offset, or was told as lost; every
  queue offset that existed leads to its message, or to a placeholder that was told;
- rest: afterwards ``verify`` finds nothing but what the plan named as left, and the same repair plans nothing;
- surprise: what the plan foretold is what was done, to the byte;
- return: ``undo`` gives back bytes, names, modes, times and owners; what is refused or only
  looked at stays as it is;
- agreement: ``doctor``, ``--as-broker`` and ``verify`` do not contradict each other, and advice leads on;
- sentence: nothing fails but with an ``MqtoolError``.
"""

import collections
import contextlib
import dataclasses
import os
import re
import resource
import shutil
import signal
import tempfile
import traceback
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from mqtool.engine.repair.findings import Finding
from mqtool.engine.repair.plan import Plan
from mqtool.engine.store.paths import StoreConfig
from mqtool.errors import MqtoolError
from tests.golden import manifest
from tests.judge.index import key_hash
from tests.judge.log import JudgedRecord
from tests.judge.store import JudgedStore, Key
from tests.laws import advice
from tests.laws.cases import LawCase
from tests.laws.damages import base_of
from tests.laws.repairs import IN_PLACE, Direct, StatedLosses, config_of

_MAX_NAMED = 4
_SPARSE = 1 << 18
_STANDSTILL = 60
"""So many times the seconds that a case may work pass at most by the clock."""

_NORMAL_SEGMENTS = 3
_UNREAD = re.compile(r"the log before ([\d,]+) was not checked: --abnormal")
_PLACES = ("INNER_BASE", "INNER_NUM", "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET")
"""Properties that tell the places of a message in queues."""
_NUMBERS = re.compile(rb"(?<![^\x02])INNER_(?:NUM|BASE)\x01[^\x02]*")
_SEGMENT = re.compile(r"\b\d{20}\b")

State = dict[str, tuple[Any, ...]]


@dataclasses.dataclass(frozen=True)
class Violation:
    """A law that was not kept; ``cause`` is the same for cases that fail alike."""

    law: str
    cause: str
    message: str


@dataclasses.dataclass
class Result:
    """What a case came to; ``outcome`` is one word: repaired, nothing, refused, ..."""

    outcome: str
    violations: list[Violation]


class SlowError(Exception):
    """A case took longer than it may."""


def check(case: LawCase, scratch: Path | None = None, runner: Direct | None = None) -> Result:
    """Carry out a case in a folder of its own below ``scratch`` and hold every law against it; ``runner`` repairs."""
    folder = Path(tempfile.mkdtemp(dir=scratch, prefix="laws-"))
    runner = runner or Direct()
    try:
        with _time_limit(runner.seconds):
            return _Check(case, folder, runner).run()
    except SlowError:
        return Result("slow", [Violation("cost", "slow", f"not done after {runner.seconds} s of processor")])
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(where.filename).name}:{where.name}"
        text = "".join(traceback.format_exception(error)[-4:])
        return Result("failed", [Violation("sentence", f"{type(error).__name__} in {place}", text)])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise ``SlowError`` when so many seconds of processor are used, those of commands that were run included.

    The clock tells only of a standstill: beside other work a case may wait long for its turns.
    """

    def stop(*_: object) -> None:
        raise SlowError

    before = [signal.signal(number, stop) for number in (signal.SIGPROF, signal.SIGALRM)]
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, _STANDSTILL * seconds)
    used = _used_by_commands()
    try:
        yield
        if _used_by_commands() - used > seconds:
            raise SlowError
    finally:
        for timer in (signal.ITIMER_PROF, signal.ITIMER_REAL):
            signal.setitimer(timer, 0)
        for number, handler in zip((signal.SIGPROF, signal.SIGALRM), before, strict=True):
            signal.signal(number, handler)


def _used_by_commands() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


class _Check:
    """One case on its way."""

    def __init__(self, case: LawCase, folder: Path, runner: Direct) -> None:
        self.case = case
        self.runner = runner
        self.store = case.build(folder)
        self.into = folder / "new"
        self.config = config_of(case.base, self.store, case.settings)
        self.state = state_of(self.store)
        self.before = self.judged(self.store)
        self.violations: list[Violation] = []

    def judged(self, store: Path) -> JudgedStore:
        return JudgedStore(store, manifest(self.case.base)["config"])

    def broken(self, law: str, cause: str, message: str) -> None:
        self.violations.append(Violation(law, cause, message))

    def run(self) -> Result:
        _ = self.before.records, self.before.queues, self.before.batch_queues, self.before.misplaced  # as it is now
        try:
            outcome = self._run()
        except MqtoolError as error:
            outcome = f"refused: {type(error).__name__}"
            self.unchanged("a refusal")
        return Result(outcome, self.violations)

    def _run(self) -> str:
        if self.case.repair == "doctor":
            told = config_of(self.case.base, self.store, is_told=True)  # doctor takes what is not set for defaults
            advice.follow(self.store, told, self.broken)
            return "advised"
        return self.repair_in_place() if self.case.repair in IN_PLACE else self.repair_into()

    # Repairs of the store itself

    def repair_in_place(self) -> str:
        repair = self.case.repair
        plan = self.runner.plan(self.store, self.config, repair)
        self.unchanged("planning")
        if plan.refusal:
            return "refused"
        if not plan.changes:
            if repair.startswith("recover -") and "broker" not in repair:
                self.at_rest(plan)
            return "nothing"
        self.runner.carry_out(self.store, self.config, plan)
        state = state_of(self.store)
        after = self.judged(self.store)
        if "broker" in repair:
            self.as_told_by_broker(StatedLosses.of(plan.losses), after)
        else:
            self.conserved(plan, after)
            self.at_rest(plan)
        self.as_foretold(plan, state)
        self.runner.undo(self.store)
        self.unchanged("undo")
        return "repaired"

    def conserved(self, plan: Plan, after: JudgedStore) -> None:
        """Hold messages, queue offsets and keys before and after against each other."""
        told, unread = StatedLosses.of(plan.losses), self.unread_end(plan)
        before, repair = self.before, self.case.repair
        kept = after.messages()
        were = before.messages(misplaced=not repair.startswith("rebuild"))
        were = self.without_unread(were, after, unread)
        restored = self.restored(plan, after)
        lost = [key for key, digests in were.items() if not digests - restored[key] <= kept.get(key, set())]
        righted = self.put_right(plan, after)
        lost = [key for key in lost if key not in righted]
        # An inner batch states its queue offset twice, and the damaged one of both is not a place of its own: it is
        # told at the other. That does not excuse another message of the same place.
        batches = (one for one in before.records.values() if one.keys and one.first_offset != one.queue_offset)
        heads = {
            one.keys[0]: (one.topic, one.queue_id, one.queue_offset)
            for one in batches
            if were.get(one.keys[0]) == {one.digest()}
        }
        lost = [heads.get(key, key) for key in lost]
        if not self.case.base.startswith("rocksdb"):
            there = after.reachable() - after.placeholders()
            there = {key for key in there if were.get(key, {b""}) <= kept.get(key, set())}
            everywhere = (record for segment in before.segments for record in segment.records)
            for one in everywhere:  # of another log's batch all places are told
                if any(one.digest() not in kept.get(key, ()) for key in one.keys):
                    topic, queue_id, offset = one.keys[0]
                    there -= {*one.keys, *((topic, queue_id, offset + place) for place in range(one.batch_size))}
            if cried := there.difference(StatedLosses(ranges=told.ranges).lacks(there)):
                self.broken("conservation", "cried", f"told as lost, and there: {_some(sorted(cried))}")
        self.tell_of_light_queues(told)
        if untold := told.lacks(lost):
            self.broken("conservation", "messages", f"gone without a word: {_some(untold)}")
        gone = before.unqueued() - after.unqueued() - self.restored_beside_queues(plan, after)
        for topic, count in collections.Counter(topic for topic, _ in gone.elements()).items():
            if count > told.counts[topic] + told.counts[None] + sum(
                stop - start for (name, _), ranges in told.ranges.items() for start, stop in ranges if name == topic
            ):
                self.broken(
                    "conservation", "unqueued", f"{count} of {topic} that lie in no queue are gone without a word"
                )
        if self.case.base.startswith("rocksdb"):
            return
        reachable = after.reachable(with_doubtful=repair.startswith("rebuild"))
        if repair != "rebuild index":
            offsets = existed(
                self.case.base, before, max(unread, before.min_offset), misplaced=not repair.startswith("rebuild")
            )
            missing = {key for key in offsets if key not in reachable and key not in lost and key not in righted}
            missing -= after.inside_batches()
            once = base_of(self.case.base).judged.messages()
            missing -= {key for key in missing - once.keys() if key in were and were[key] <= restored[key]}
            if repair.startswith("rebuild"):
                if any("bodies were not checked" in remark for remark in plan.remarks):
                    missing -= after.reachable(with_bad_body=True)
                # It gives a message whose number is damaged the place that it had.
                same, whole = self.same_units(after), base_of(self.case.base).judged.records
                missing -= same
                for record in before.records.values():
                    was = whole.get(record.position)
                    if was is not None and was.keys and same >= {*was.keys}:
                        missing -= {*record.keys}
            unheard = missing & set(told.lacks({*missing, *lost}))
            doubtful = unheard & after.reachable(with_doubtful=True)
            if unheard - doubtful:
                text = f"queue offsets lead to nothing, untold: {_some(sorted(unheard - doubtful))}"
                self.broken("conservation", "offsets", text)
            if doubtful:
                text = f"queues lead to records whose properties cannot be read: {_some(sorted(doubtful))}"
                self.broken("conservation", "properties", text)
        held = after.placeholders() - before.placeholders()
        if untold := told.lacks({*held, *lost}):
            new = [key for key in untold if key in held]
            if new:
                self.broken("conservation", "placeholders", f"stand there untold: {_some(new)}")
        self.in_index(after)

    def restored(self, plan: Plan, after: JudgedStore) -> "dict[Key, set[bytes]]":
        """Return digests of messages as the damage made them, which are again what they were in the undamaged store.

        Also of those whose damaged properties were written anew where they lay, with what could be read, as is told.
        """
        found: dict[Key, set[bytes]] = collections.defaultdict(set)
        whole = base_of(self.case.base).judged.records
        told = " ".join(plan.remarks)
        for record in (*self.before.records.values(), *self.before.misplaced):
            keeps_place = f"the record at {record.position:,} is intact" in told  # it states another address
            at = record.position if keeps_place else record.stated
            was, now = whole.get(at), after.records.get(at)
            if now is None:
                continue
            is_as_it_was = was is not None and was.digest() == now.digest() and was.keys == now.keys
            stays = _said_to_stay(at, plan.remarks)
            if "is kept: a copy" in stays:
                if now.body == record.body:
                    for key in {*record.keys} & {*now.keys}:
                        found[key].add(record.digest())
            elif stays:
                is_kept = _is_kept(record, now, stays)
                if is_as_it_was or (is_kept and _is_at_home(now, record, was)):
                    for key in record.keys:
                        found[key].add(record.digest())
            elif was is not None and is_as_it_was:
                for key in record.keys if self.is_of_two(record) else {*record.keys} & {*was.keys}:
                    found[key].add(record.digest())
        return found

    def is_of_two(self, record: JudgedRecord) -> bool:
        """Tell whether a record begins as the message of its stated address and ends as the one where it lies.

        Where pages were exchanged, and bodies are so much alike that the CRC of one fits; such a message never was.
        """
        whole = base_of(self.case.base).judged
        data, begun, ended = (
            store.bytes_at(address, record.size)
            for store, address in ((self.before, record.position), (whole, record.stated), (whole, record.position))
        )
        cut = next((at for at, pair in enumerate(zip(data, begun, strict=False)) if len({*pair}) > 1), 0)
        return data[cut:] == ended[cut:]

    def restored_beside_queues(self, plan: Plan, after: JudgedStore) -> "collections.Counter[tuple[str, bytes]]":
        """Count records in no queue, as the damage made them, which are again what they were in the undamaged store.

        Also those that got their place in a queue again where they lie, as is told.
        """
        told = " ".join(plan.remarks)
        whole = base_of(self.case.base).judged.records
        found: collections.Counter[tuple[str, bytes]] = collections.Counter()
        for record in self.before.records.values():
            was, now = whole.get(record.position), after.records.get(record.position)
            if record.is_queued or was is None or now is None:
                continue
            is_placed = now.keys == was.keys != [] and now.body == record.body == was.body
            if was.digest() == now.digest() != record.digest() or (
                is_placed and f"the message at {record.position:,} is intact" in told
            ):
                found[record.topic, record.digest()] += 1
        return found

    def restored_in(self, new: JudgedStore, told: StatedLosses) -> set[Key]:
        """Return the places whose messages, damaged as they were, are in a new store what they once were.

        Also of those whose damaged properties were written anew, with what could be read, as is told.
        """
        kept, whole = new.messages(), base_of(self.case.base).judged.records
        by_body: dict[bytes, list[JudgedRecord]] = collections.defaultdict(list)
        for now in new.records.values():
            by_body[now.body].append(now)
        rewritten = {
            key
            for record in self.before.records.values()
            if (stays := _said_to_stay(record.stated, told.remarks))
            if any(
                _is_at_home(now, record, whole.get(record.stated)) and _is_kept(record, now, stays)
                for now in by_body[record.body]
            )
            for key in record.keys
        }
        if any("system flag contradicts" in remark for remark in told.remarks):  # other bits of it may be damaged, too
            rewritten |= {
                key
                for record in self.before.records.values()
                if any(
                    now._replace(sys_flag=record.sys_flag).digest() == record.digest() for now in by_body[record.body]
                )
                for key in record.keys
            }
        if any("numbers of a batch are removed" in remark for remark in told.remarks):
            rewritten |= {
                key
                for record in self.before.records.values()
                if not record.sys_flag & 0x80
                if (plain := record._replace(text=_NUMBERS.sub(b"", record.text)).digest()) != record.digest()
                if any((now.digest(), now.keys) == (plain, record.keys) for now in by_body[record.body])
                for key in record.keys
            }
        return rewritten | {
            key
            for record in (*self.before.records.values(), *self.before.misplaced)
            for at in {record.stated, record.position}  # the address that it states may be damaged, too
            if (was := whole.get(at))
            for key in {*record.keys} & {*was.keys}
            if was.digest() in kept.get(key, ())
        }

    def without_unread(self, were: "dict[Key, set[bytes]]", after: JudgedStore, unread: int) -> "dict[Key, set[bytes]]":
        """Leave out what lay in the wrong place where nobody looked, and lies there still."""
        left = {(one.position, one.stated, one.digest()) for one in after.misplaced}
        for one in self.before.misplaced:
            if one.position < unread and (one.position, one.stated, one.digest()) in left:
                for key in one.keys:
                    were[key] = were.get(key, set()) - {one.digest()}
        return were

    def same_units(self, after: JudgedStore) -> set[Key]:
        """Return the places of queues whose units are those of the whole store."""
        whole = base_of(self.case.base).judged
        units = {(*queue, unit.queue_offset): unit[:3] for queue, unit in whole.units()}
        return {
            (*queue, unit.queue_offset)
            for queue, unit in after.units()
            if units.get((*queue, unit.queue_offset)) == unit[:3]
        }

    def put_right(self, plan: Plan, after: JudgedStore) -> set[Key]:
        """Return places that messages had by mistake: they lie where they lay, and got their own again, as is told."""
        told = " ".join(plan.remarks)
        return {
            key
            for record in (*self.before.records.values(), *self.before.misplaced)
            if (now := after.records.get(record.stated)) and now.keys != record.keys and _is_same_but_place(record, now)
            if f"the message at {record.stated:,} is intact" in told
            for key in record.keys
        }

    def tell_of_light_queues(self, told: StatedLosses) -> None:
        """A message that is told as lost under its own queue is told as lost in its light queues as well."""
        for record in (*self.before.records.values(), *self.before.misplaced):
            if len(record.keys) > 1 and not told.lacks(record.keys[:1]):
                for name, queue_id, offset in record.keys[1:]:
                    told.add(name, queue_id, offset, offset + 1)

    def in_index(self, after: JudgedStore) -> None:
        """After a repair that answers for the index every key leads to its messages."""
        made = list((after.root / "index").glob("*"))
        if self.case.repair in ("rebuild queues", "recover", "recover --normal") or len(after.index) != len(made):
            return  # where nothing tells its sizes, an index is made in those that brokers take by themselves
        chained = {(entry.key_hash, entry.physical_offset) for file in after.index for entry in file.chained()}
        missing = []
        for record in after.records.values():
            if record.sys_flag & 0xC == 0xC or record.is_placeholder:
                continue
            names = record.properties
            keys = [names.get("UNIQ_KEY", ""), *names.get("KEYS", "").split(" ")]
            if any(key and (key_hash(record.topic, key), record.position) not in chained for key in keys):
                missing.append(record.position)
        if missing:
            self.broken("conservation", "index", f"keys do not lead to the messages at {_some(missing)}")

    def at_rest(self, plan: Plan) -> None:
        """Hold ``verify`` and a second plan against what the plan left."""
        named = " ".join(plan.remarks)
        repair = self.case.repair
        left = [
            one
            for one in self.runner.findings(self.store, self.config)
            if one.severity != "note" and not _is_named(one, named)
            if not self.is_unread(one, plan) and not self.is_of_group(one, plan)
        ]
        if repair.startswith("rebuild"):
            kinds = {"rebuild queues": ("QUEUE-",), "rebuild index": ("INDEX-",)}.get(repair, ("QUEUE-", "INDEX-"))
            is_log_whole = not any(one.code.startswith("LOG-") for one in left)
            left = [one for one in left if is_log_whole and one.code.startswith(kinds)]
        for code in sorted({one.code for one in left}):
            first = next(one for one in left if one.code == code)
            self.broken("rest", code, f"verify finds {code} {first.file}@{first.offset}: {first.message}")
        if not repair.startswith("rebuild"):
            again = self.runner.plan(self.store, self.config, repair)
            for change in again.changes[:1]:
                self.broken("rest", f"again {change.what}", f"planned again: {change}")

    def is_of_group(self, found: Finding, plan: Plan) -> bool:
        """Tell whether a finding is of a group of which the plan tells that it is hit."""
        hit = {(effect.topic, effect.queue_id) for effect in plan.groups}
        return found.code in ("CONFIG-OFFSET", "CONFIG-OFFSET-EXPIRED") and (found.topic, found.queue_id) in hit

    def unread_end(self, plan: Plan) -> int:
        """Return the address before which a repair did not look, as its plan tells: of the last three segments."""
        starts = [one.start for one in self.before.segments if one.start is not None]
        is_normal = self.case.repair in ("recover", "recover --normal")
        told = _UNREAD.search(" ".join(plan.remarks))
        if not is_normal or len(starts) <= _NORMAL_SEGMENTS or told is None:
            return 0
        return min(starts[-_NORMAL_SEGMENTS], int(told[1].replace(",", "")))

    def is_unread(self, found: Finding, plan: Plan) -> bool:
        """Tell whether a finding lies where the plan says that nobody looked."""
        end = self.unread_end(plan)
        name = Path(found.file or "").name
        in_log = found.code.startswith("LOG-") and name.isdecimal() and int(name) < end
        return in_log or (found.physical_offset is not None and found.physical_offset < end)

    def as_foretold(self, plan: Plan, state: State) -> None:
        """Hold every change of the store against the plan."""
        changed = {path for path in self.state.keys() | state.keys() if self.differs(path, state)}
        folders = {change.file for change in plan.changes}
        given = {  # new names of what is renamed: the reason says under which name it belongs
            str(Path(change.file).with_name(name))
            for change in plan.changes
            if change.what == "rename"
            for name in _SEGMENT.findall(change.reason)
        }
        folders |= given
        if "broker" in self.case.repair:  # its index files are named by the time when they are made
            changed = {path for path in changed if not path.startswith("index/")}
        # What lies in a folder that is replaced is foretold; so is the folder of a file that is made.
        untold = [
            path
            for path in sorted(changed)
            if not any(path == name or path.startswith(f"{name}/") or name.startswith(f"{path}/") for name in folders)
        ]
        if untold:
            self.broken("surprise", f"untold {_kind(untold[0])}", f"changed, and not foretold: {_some(untold)}")
        for change in plan.changes:
            name = change.file
            touched = any(path == name or path.startswith(f"{name}/") for path in changed)
            if "broker" in self.case.repair and name.startswith("index/"):
                continue
            if sum(other.file == name for other in plan.changes) > 1 and change.what in ("create", "remove"):
                continue  # removed, and made again, maybe as it was
            if change.what == "remove" and name in given and name not in state:
                continue  # under the name that it had for a moment
            if not touched and change.what != "replace":
                self.broken("surprise", f"undone {change.what}", f"foretold, and not done: {change}")
            elif change.what == "create" and (name in self.state or name not in state):
                self.broken(
                    "surprise", "create", f"foretold: {change}; before {name in self.state}, after {name in state}"
                )
            elif change.what == "remove" and name in state and name not in given:
                self.broken("surprise", "remove", f"foretold, and still there: {change}")
            elif change.what == "create" and change.size is not None and state[name][0] not in (None, change.size):
                self.broken("surprise", "size", f"foretold: {change}; it has {state[name][0]:,} bytes")
        self.bytes_as_foretold(plan)

    def differs(self, path: str, state: State) -> bool:
        """Tell whether a file is another, or a folder comes or goes; times of folders do not count."""
        one, other = self.state.get(path), state.get(path)
        if one is None or other is None:
            return True
        return one[:2] != other[:2] or one[2:5] != other[2:5]

    def bytes_as_foretold(self, plan: Plan) -> None:
        """Hold every changed byte of files that are written to against the places that the plan names."""
        places: dict[str, list[tuple[int, int]]] = {}
        for change in plan.changes:
            if change.what in ("write", "cut") and change.offset is not None and change.size is not None:
                places.setdefault(change.file, []).append((change.offset, change.offset + change.size))
        others = {change.file for change in plan.changes if change.what in ("create", "remove", "replace")}
        others |= {  # of a folder whose files are written to as a whole
            file
            for change in plan.changes
            if change.offset is None
            for file in places
            if Path(change.file) in Path(file).parents
        }
        olds = {
            str(Path(change.file).with_name(name)): change.file
            for change in plan.changes
            if change.what == "rename"
            for name in _SEGMENT.findall(change.reason)
        }
        damaged = self.case.build(self.into.with_name("again"))
        for file in olds:
            places.setdefault(file, [])
        for file, ranges in places.items():
            old = damaged / olds.get(file, file)
            if file in others or not old.is_file() or not (self.store / file).is_file():
                continue
            one, other = old.read_bytes(), (self.store / file).read_bytes()
            size = max(len(one), len(other))
            one, other = one.ljust(size, b"\0"), other.ljust(size, b"\0")
            outside = [at for at in _differing(one, other) if not any(low <= at < high for low, high in ranges)]
            if outside:
                self.broken(
                    "surprise", f"bytes {_kind(file)}", f"bytes of {file} changed outside of the plan: {_some(outside)}"
                )

    def as_told_by_broker(self, told: StatedLosses, after: JudgedStore) -> None:
        """Hold what a verdict foretold against what has gone, and what is there and no unit of its queue leads to."""
        kept = after.messages()
        rows = [one for one in self.before.records.values() if one.keys and not one.is_placeholder]
        lost = [one.keys[0] for one in rows if one.digest() not in kept.get(one.keys[0], set())]
        if untold := told.lacks(lost):
            self.broken("conservation", "messages", f"gone without a word: {_some(untold)}")
        if self.case.base.startswith("rocksdb"):
            return
        led_to = {(*queue, unit.physical_offset) for queue, unit in after.units()}  # at whatever offset it was put
        hidden = [key for one in rows for key in one.keys if (*key[:2], one.position) not in led_to]
        if unheard := set(told.lacks({*hidden, *lost})) - set(lost):
            self.broken("conservation", "hidden", f"no unit leads to, untold: {_some(sorted(unheard))}")

    # Repairs into a new store

    def repair_into(self) -> str:
        sizes = config_of(self.case.base, self.store, is_told=True)
        if self.case.repair == "salvage":
            told = self.runner.salvage(self.store, self.config, self.into)
        else:
            told = self.runner.export_and_import(self.store, self.config, sizes, self.into)
        self.unchanged(self.case.repair)
        config = {name: value for name, value in manifest(self.case.base)["config"].items() if name != "commitLogPaths"}
        new = JudgedStore(self.into, config)
        before = self.before
        kept = new.messages()
        were = before.messages(misplaced=self.case.repair == "salvage")
        restored = self.restored_in(new, told)
        lost = [key for key, digests in were.items() if key not in restored and not digests & kept.get(key, set())]
        self.tell_of_light_queues(told)
        if untold := told.lacks(lost):
            self.broken("conservation", "messages", f"gone without a word: {_some(untold)}")
        elif changed := told.lacks(
            key for key in kept.keys() & were.keys() - restored if kept[key] - were[key]
        ):  # none was moved
            self.broken("conservation", "changed", f"another message than it was: {_some(changed)}")
        offsets = existed(self.case.base, before, before.min_offset)
        reachable = new.reachable()
        missing = {key for key in offsets if key not in reachable and key not in lost} - new.inside_batches()
        if self.case.repair == "salvage" and (untold := told.lacks({*missing, *lost})):
            new_ones = [key for key in untold if key in missing]
            if new_ones:
                self.broken("conservation", "offsets", f"queue offsets lead to nothing, untold: {_some(new_ones)}")
        unreachable = kept.keys() - reachable
        if unreachable:
            self.broken("conservation", "queues", f"no queue leads to {_some(sorted(unreachable))}")
        # A salvage to which nobody tells the sizes, and whose store does not, makes files of other ones, and says so.
        is_told = self.case.settings or self.case.repair != "salvage"
        told_sizes = StoreConfig({name: str(value) for name, value in config.items()} if is_told else {})
        named = " ".join(told.remarks)
        for code, first in _worst(self.runner.findings(self.into, told_sizes)).items():
            if f"({code})" in named:
                continue
            self.broken("rest", code, f"verify finds {code} {first.file}@{first.offset}: {first.message}")
        return "made"

    # Common

    def unchanged(self, after: str) -> None:
        """Hold the store against what it was: every byte, name, mode, time and owner."""
        now = state_of(self.store)
        if now != self.state:
            paths = sorted(path for path in now.keys() | self.state.keys() if now.get(path) != self.state.get(path))
            one = f"{paths[0]}: {self.state.get(paths[0])} became {now.get(paths[0])}"
            self.broken("return", f"{after} {_kind(paths[0])}", f"after {after} {_some(paths)} differ: {one}")


def existed(base: str, damaged: JudgedStore, start: int, misplaced: bool = True) -> set[Key]:
    """Return the places of queues that there were, as far as the damaged store can tell.

    A record or a unit tells of its own, and of all that stood between two that are told of. What lay before the address
    ``start`` does not count: before the log's first segment it has gone by age. Nor do numbers that no unit can have,
    nor, without ``misplaced``, records that lie elsewhere than they say: a rebuild leaves these to ``recover``.
    """
    whole = base_of(base).judged
    evidence = set(damaged.messages(misplaced=misplaced))
    units = {(queue, unit[:3]) for queue, unit in whole.units()}
    for queue, unit in damaged.units():
        if (queue, unit[:3]) in units:
            evidence.add((*queue, unit.queue_offset))
    evidence = {key for key in evidence if 0 <= key[2] < (1 << 63) // 20}  # bytes of units
    bounds: dict[tuple[str, int], tuple[int, int]] = {}
    for topic, queue_id, offset in evidence:
        low, high = bounds.get((topic, queue_id), (offset, offset))
        bounds[topic, queue_id] = min(low, offset), max(high, offset)
    records = (*damaged.records.values(), *whole.records.values())
    addresses = {key: record.position for record in records for key in record.keys}
    between = {key for key in addresses if key[:2] in bounds and bounds[key[:2]][0] <= key[2] <= bounds[key[:2]][1]}
    return {key for key in evidence | between if addresses.get(key, start) >= start}


def state_of(store: Path) -> State:
    """Return size, checksum, mode, owner, group and modification time (ns) of every file and folder."""
    state: State = {}
    for folder, folders, files in os.walk(store):
        for name in files:
            path = os.path.join(folder, name)  # noqa: PTH118  quicker, and this is most of what a case costs
            status = os.lstat(path)
            state[os.path.relpath(path, store)] = (status.st_size, _checksum(path, status), *_attributes(status))
        for name in (*folders, "."):
            path = os.path.normpath(os.path.join(folder, name))  # noqa: PTH118
            state[os.path.relpath(path, store)] = (None, None, *_attributes(os.lstat(path)))
    return state


def _attributes(status: os.stat_result) -> tuple[int, ...]:
    return status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns


def _checksum(path: str, status: os.stat_result) -> int:
    with open(path, "rb") as file:  # noqa: PTH123
        if status.st_size < _SPARSE:
            return zlib.crc32(file.read())
        total, at = 0, 0
        while at < status.st_size:  # only what is no hole, in blocks that do not depend on where holes are
            try:
                at = os.lseek(file.fileno(), at, os.SEEK_DATA) // _SPARSE * _SPARSE
            except OSError:
                break
            data = os.pread(file.fileno(), _SPARSE, at)
            if data.count(0) < len(data):
                total = zlib.crc32(data, zlib.crc32(b"%d" % at, total))
            at += _SPARSE
        return total


def _is_named(found: Finding, remarks: str) -> bool:
    """Tell whether a plan named what it leaves: by its code, by its file, or all queues that are in RocksDB."""
    if "are in RocksDB" in remarks and found.code.startswith("QUEUE-"):
        return True
    return found.code in remarks or (found.file is not None and found.file in remarks)


def _worst(findings: Iterable[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for one in findings:
        if one.severity != "note":
            found.setdefault(one.code, one)
    return found


def _differing(one: bytes, other: bytes) -> Iterator[int]:
    for start in range(0, len(one), 4096):
        if one[start : start + 4096] != other[start : start + 4096]:
            yield from (at for at in range(start, min(start + 4096, len(one))) if one[at] != other[at])


def _said_to_stay(at: int, remarks: Iterable[str]) -> str:
    """Return the remark on a record that stays with other properties, nothing without one."""
    return next((one for one in remarks if f"the message at {at:,} is kept" in one), "")


def _is_kept(record: JudgedRecord, now: JudgedRecord, told: str) -> bool:
    """Tell whether a record has its body again, and the properties that can be read but for those that are told."""
    gone = re.findall(r"[^\s,]+", told.partition("leaves no room for ")[2])
    gone += ["DELAY"] if "its delay level" in told else []
    some = {name: value for name, value in record.properties.items() if name not in (*_PLACES, *gone)}
    pairs = ((name, value, name + value) for name, value in some.items())
    readable = {name: value for name, value, text in pairs if text.isprintable() and "\ufffd" not in text}
    return now.body == record.body and readable.items() <= now.properties.items()


def _is_same_but_place(record: JudgedRecord, now: JudgedRecord) -> bool:
    """Tell whether a record has all that it had but its place, which a batch says in a property, too."""
    one, other = ((each.flag, each.born_timestamp, each.reconsume_times) for each in (record, now))
    return now.digest() == record.digest() or (one == other and _is_kept(record, now, ""))


def _is_at_home(now: JudgedRecord, record: JudgedRecord, was: JudgedRecord | None) -> bool:
    """Tell whether a record has the places that it had, or those of the undamaged store.

    Where these are others, what damaged properties claimed beside them never was.
    """
    return (now.keys, now.batch_size) in [(one.keys, one.batch_size) for one in (record, was) if one is not None]


def _kind(path: str) -> str:
    return path.partition("/")[0]


def _some(things: Iterable[Any]) -> str:
    listed = list(things)
    more = f" and {len(listed) - _MAX_NAMED} more" if len(listed) > _MAX_NAMED else ""
    return f"{listed[:_MAX_NAMED]}{more}"
