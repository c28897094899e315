"""What a broker started now would do to a store, according to the plans of ``recover --as-broker``.

Cost: that of one predicted start for each version.
"""

import collections
import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from mqtool.engine.repair.doctor.case import Case, Effect, Sign
from mqtool.engine.repair.doctor.log import remade
from mqtool.engine.repair.java_recovery.log import Outcome
from mqtool.engine.repair.java_recovery.plan import BEHIND, GONE, MEETS, UNREACHABLE, BrokerVerdict, start, with_losses
from mqtool.engine.repair.java_recovery.start import BrokerStart
from mqtool.engine.repair.plan import GroupEffect
from mqtool.engine.repair.verify.store import last_segments
from mqtool.engine.store.dispatch import QueueKey
from mqtool.engine.store.paths import StoreConfig
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import MqtoolError

_LEAST = 2 << 30
"""Bytes of log that are always searched for messages that no queue leads to: it takes a second or two."""
_SHOWN = 3


@dataclasses.dataclass(frozen=True)
class StartOutcome:
    """What happens when a broker of one of these versions is started now: they all do the same.

    ``starts`` is None if it is not known; ``why`` says why that is, or why the broker does not start.
    ``deleted`` counts sound messages beyond the end of its log, ``hidden`` those that no queue leads to, ``forgotten``
    queue offsets whose message is already gone. Hidden messages are counted from ``looked_from`` on. Messages
    before ``keys_from`` are no longer found by key: it rebuilds the index from there on.
    """

    versions: tuple[str, ...]
    starts: bool | None
    why: tuple[str, ...] = ()
    end_offset: int | None = None
    removed_segments: tuple[str, ...] = ()
    removed_queue_files: tuple[str, ...] = ()
    removed_index_files: tuple[str, ...] = ()
    deleted: int = 0
    hidden: int = 0
    forgotten: int = 0
    topics: tuple[str, ...] = ()
    groups: tuple[GroupEffect, ...] = ()
    looked_from: int | None = None
    keys_from: int | None = None


@dataclasses.dataclass(frozen=True)
class Foretold:
    """The verdicts for the relevant versions, or the reason why they are not known."""

    verdicts: tuple[BrokerVerdict, ...] = ()
    looked_from: int = 0
    unknown: str | None = None

    @property
    def in_log(self) -> set[QueueKey]:
        """The queues of which the log has messages, as far as it was examined."""
        keys = {(str(loss.topic), loss.queue_id or 0) for verdict in self.verdicts for loss in verdict.losses}
        for verdict in self.verdicts:
            queues = verdict.after_start.queues if verdict.after_start else {}
            keys |= {key for key, queue in queues.items() if queue.max_offset > 0}
        return keys

    def counts(self, verdict: BrokerVerdict) -> "collections.Counter[str]":
        """Return how many messages a broker loses, by reason."""
        counts: collections.Counter[str] = collections.Counter()
        for loss in verdict.losses:
            counts[loss.reason] += loss.messages
        return counts


def foretell(case: Case, is_queue_lost: bool) -> Foretold:
    """Return what brokers of the relevant versions would do.

    Each reads what it would read at startup. Then the log is read once more for all of them, from the place
    that decides: the last two segments and 2 GiB, or where one of them ends the log or a queue earlier.

    Args:
        case: the store.
        is_queue_lost: messages of any age may be without their queue.
    """
    if case.reader.is_live:
        return Foretold(unknown="a broker is running on the store")
    brokers: list[BrokerStart] = []
    try:
        reader = _reader_as_set(case)
        brokers += [BrokerStart(reader, version) for version in case.versions]
        with ThreadPoolExecutor(max(1, min(case.jobs, len(brokers)))) as pool:
            verdicts = list(pool.map(start, brokers))
        since = reader.commit_log.min_offset if is_queue_lost else _decides_from(reader, brokers)
        verdicts_with_losses = with_losses(brokers, verdicts, since, case.progress)
        return Foretold(tuple(verdicts_with_losses), max(since, reader.commit_log.min_offset))
    except MqtoolError as error:
        return Foretold(unknown=str(error))
    except OSError as error:
        return Foretold(unknown=f"{error.filename or 'a file'}: {error.strerror or error}")
    finally:
        for broker in brokers:
            broker.close()


def _reader_as_set(case: Case) -> StoreReader:
    """Return the store with the given settings, if it can be opened with them."""
    with contextlib.suppress(MqtoolError, OSError):
        reader = StoreReader(case.root, StoreConfig(case.settings))
        if reader.paths.commit_log and reader.commit_log.segments is not None:
            return reader
    return case.reader


def _decides_from(reader: StoreReader, brokers: Iterable[BrokerStart]) -> int:
    """Return the address from which messages are searched for in the queues of brokers that have started."""
    segments = last_segments(reader.commit_log)
    if not segments:
        return 0
    addresses = [segments[0].start_offset, segments[-1].end_offset - _LEAST]
    for broker in brokers:
        if broker.walk is not None:
            addresses.append(broker.max_physical_offset)
        for key, queue in reader.consume_queues.items():
            after = broker.queues.get(key)
            stop = queue.max_offset()
            if after is not None and after.max_offset < stop:
                dropped = queue.units(max(queue.first_offset, after.max_offset), stop)["physical_offset"]
                addresses += [int(dropped.min())] if len(dropped) else []
    return max(0, min(addresses))


def starts_of(foretold: Foretold, versions: Iterable[str], stopped: dict[str, list[str]]) -> list[StartOutcome]:
    """Return what happens, once for all versions that do the same.

    Args:
        foretold: by ``foretell``.
        versions: the relevant ones.
        stopped: for each version, the causes outside of the store's files that keep it from starting.
    """
    if foretold.unknown is not None:
        alone = {version: (False if stopped.get(version) else None, _why(stopped, version)) for version in versions}
        outcomes = [
            StartOutcome((version,), starts, why or (f"not checked: {foretold.unknown}",))
            for version, (starts, why) in alone.items()
        ]
    else:
        outcomes = [_start_of(foretold, verdict, _why(stopped, verdict.version)) for verdict in foretold.verdicts]
    merged: dict[StartOutcome, list[str]] = {}
    for outcome in outcomes:
        merged.setdefault(dataclasses.replace(outcome, versions=()), []).extend(outcome.versions)
    return [dataclasses.replace(outcome, versions=tuple(names)) for outcome, names in merged.items()]


def _why(stopped: dict[str, list[str]], version: str) -> tuple[str, ...]:
    return tuple(f"see {code} below" for code in stopped.get(version, ()))


def _start_of(foretold: Foretold, verdict: BrokerVerdict, why: tuple[str, ...]) -> StartOutcome:
    if not verdict.starts:
        return StartOutcome((verdict.version,), False, (verdict.refusal or verdict.endless or "", *why))
    counts = foretold.counts(verdict)
    topics: collections.Counter[str] = collections.Counter()
    for loss in verdict.losses:
        topics[loss.topic or "(unknown)"] += loss.messages
    return StartOutcome(
        (verdict.version,),
        not why,
        why,
        verdict.end_offset,
        verdict.removed_segments,
        verdict.removed_queue_files,
        verdict.removed_index_files,
        counts[BEHIND],
        counts[UNREACHABLE],
        counts[GONE],
        tuple(topic for topic, _ in topics.most_common()),
        verdict.groups,
        foretold.looked_from,
        verdict.start_offset if verdict.removed_index_files and verdict.start_offset else None,
    )


def too_large(foretold: Foretold, signs: Iterable[Sign]) -> Iterator[Sign]:
    """Yield the records that 4.9 reaches and fails on, or may fail on if its heap is small."""
    verdict = next((candidate for candidate in foretold.verdicts if candidate.version == "4.9"), None)
    for sign in signs:
        if verdict is None or not verdict.starts:
            yield sign
        elif verdict.end_offset == sign.physical_offset:
            text = f"{sign.message}; a broker without enough heap for it does not start"
            yield dataclasses.replace(sign, message=text, effect=Effect.LOSES)


# What no other cause explains


def unexplained(
    case: Case, foretold: Foretold, is_told: Callable[[str, str], bool], damaged: Iterable[Sign]
) -> Iterator[tuple[str, list[Sign]]]:
    """Yield causes by code with their signs, for what brokers would do and no other cause explains.

    Args:
        case: the store.
        foretold: of it.
        is_told: whether a cause already says that a version "stops", "deletes" or "hides".
        damaged: the damage to the log that is reported first: a broker may skip it and end its log further on.
    """
    places = {sign.physical_offset for sign in damaged}
    refused: dict[tuple[str, bool], list[str]] = collections.defaultdict(list)
    ends: dict[tuple[int, Outcome | None, int], list[str]] = collections.defaultdict(list)
    hides: dict[tuple[int, tuple[QueueKey, ...]], list[str]] = collections.defaultdict(list)
    for verdict in foretold.verdicts:
        version, counts = verdict.version, foretold.counts(verdict)
        if not verdict.starts and not is_told(version, "stops"):
            refused[verdict.refusal or verdict.endless or "", verdict.is_ext_refused].append(version)
        is_elsewhere = bool(places) and verdict.end_offset not in places
        if counts[BEHIND] and (is_elsewhere or not is_told(version, "deletes")):
            ends[verdict.end_offset or 0, verdict.end_reason, counts[BEHIND]].append(version)
        if counts[UNREACHABLE] and not is_told(version, "hides"):
            queues = {(loss.topic or "", loss.queue_id or 0) for loss in verdict.losses if loss.reason == UNREACHABLE}
            hides[counts[UNREACHABLE], tuple(sorted(queues))].append(version)
    if refused:
        signs = []
        for (text, is_of_ext), names in refused.items():
            sign = Sign(text, versions=tuple(names))
            command = remade(case, sign) if is_of_ext else f"mqtool recover --abnormal {case.at}"
            signs.append(dataclasses.replace(sign, commands=(command,)))
        yield "START-REFUSED", signs
    if ends:
        yield "LOG-DAMAGED", [_end_sign(case, *end, tuple(names)) for end, names in ends.items()]
    if hides:
        yield "START-HIDES", [_hidden_sign(*key, tuple(names)) for key, names in hides.items()]


def _end_sign(case: Case, offset: int, reason: Outcome | None, count: int, versions: tuple[str, ...]) -> Sign:
    segment = case.reader.commit_log.segment_at(offset)
    meets = f" ({MEETS[reason]})" if reason else ""
    return Sign(
        f"a broker that starts now ends the log here{meets}, and deletes {count:,} sound messages after it",
        file=case.reader.paths.relative(segment.path) if segment else None,
        offset=offset - segment.start_offset if segment else None,
        physical_offset=offset,
        versions=versions,
    )


def _hidden_sign(count: int, queues: tuple[QueueKey, ...], versions: tuple[str, ...]) -> Sign:
    names = ", ".join(f"{topic} {queue_id}" for topic, queue_id in queues[:_SHOWN])
    more = f" and {len(queues) - _SHOWN:,} more" if len(queues) > _SHOWN else ""
    return Sign(
        f"a broker that starts now leaves {count:,} sound messages out of their queues ({names}{more})",
        topic=queues[0][0] if len(queues) == 1 else None,
        versions=versions,
    )
