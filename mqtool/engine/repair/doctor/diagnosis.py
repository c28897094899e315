"""``examine``: why a broker does not start on a store, or does not deliver, and the command to run next.

Cost: that of ``verify --level quick`` and of the predicted starts; the whole log is read only to advise ``recover``.
"""

import dataclasses
import functools
import shlex
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from mqtool.engine.repair.checks import CHECKS
from mqtool.engine.repair.doctor import broker, delivery, log, start
from mqtool.engine.repair.doctor.broker import StartOutcome
from mqtool.engine.repair.doctor.case import ALL, FIVE, Case, Effect, Sign
from mqtool.engine.repair.doctor.log import cuts, of_findings
from mqtool.engine.repair.doctor.pages import PAGES
from mqtool.engine.repair.doctor.surroundings import User
from mqtool.engine.repair.findings import Severity
from mqtool.engine.store.dispatch import QueueKey
from mqtool.errors import MqtoolError

MAX_SEEN = 10
"""How many signs of one cause are listed; the others are counted."""
_MAX_COMMANDS = 5

SEVERITIES = {
    Effect.STOPS: Severity.ERROR,
    Effect.LOSES: Severity.ERROR,
    Effect.HIDES: Severity.WARNING,
    Effect.HINDERS: Severity.WARNING,
    Effect.UNSEEN: Severity.WARNING,
    Effect.NOTHING: Severity.NOTE,
}


@dataclasses.dataclass(frozen=True)
class Cause:
    """One cause: what it does to a broker, how it is detected, and the commands to run next.

    ``Case.fill`` puts the facts of the signs into ``next``. A sign may have its own commands, versions and effect.
    """

    effect: Effect
    title: str
    probe: Callable[[Case], Iterator[Sign]]
    next: tuple[str, ...] = ()
    versions: tuple[str, ...] = ALL


@dataclasses.dataclass(frozen=True)
class Diagnosis:
    """A cause that was found: its signs, the affected versions, and what to do."""

    code: str
    severity: Severity
    effect: Effect
    versions: tuple[str, ...]
    title: str
    count: int
    seen: list[Sign]
    next: list[str]


STOPS, LOSES, HIDES, HINDERS, UNSEEN, NOTHING = Effect

_ASIDE = "mkdir -p {aside} && mv --backup=numbered -- {path} {aside}/"
_INDEX = "mqtool rebuild index {at}"
_REBUILD_CONFIG = "mqtool rebuild config "
_CONFIG = _REBUILD_CONFIG + "{at}"
_ROCKSDB = "pip install 'mqtool[rocksdb]'"
_RECOVER = "mqtool recover{whole} {at}"
_RECOVER_WHOLE = "mqtool recover --abnormal "
_RECOVER_ALL = _RECOVER_WHOLE + "{at}"
_NEW_STORE = "mqtool salvage --into {new} {at}"
_EXPORT = "mqtool export --topic {topic} {at}"
_UPDATE_TOPIC = "mqadmin updateTopic {admin} -c {cluster} -t {topic}"

# Within each effect, likelier causes and those that lead to others come first.
CAUSES: dict[str, Cause] = {
    # Place and machine.
    "STORE-IN-USE": Cause(STOPS, PAGES["STORE-IN-USE"].title, start.in_use),
    "NOT-PERMITTED": Cause(
        STOPS, PAGES["NOT-PERMITTED"].title, start.not_permitted
    ),
    "STORE-TWO-BROKERS": Cause(
        LOSES, PAGES["STORE-TWO-BROKERS"].title, start.noted_process
    ),
    "DISK-FULL": Cause(LOSES, PAGES["DISK-FULL"].title, start.disk),
    # Settings.
    "SETTING-IGNORED": Cause(STOPS, PAGES["SETTING-IGNORED"].title, start.ignored_settings),
    "SETTING-FILE-SIZE": Cause(
        STOPS, PAGES["SETTING-FILE-SIZE"].title, start.file_sizes
    ),
    "SETTING-SLAVE-ID": Cause(STOPS, PAGES["SETTING-SLAVE-ID"].title, start.slave_without_id),
    "SETTING-LOG-PATH": Cause(
        LOSES, PAGES["SETTING-LOG-PATH"].title,
        start.log_elsewhere,
    ),
    "SETTING-DLEDGER": Cause(LOSES, PAGES["SETTING-DLEDGER"].title, start.dledger_off),
    "SETTING-FORCED-CRC": Cause(
        LOSES, PAGES["SETTING-FORCED-CRC"].title, start.forced_crc, versions=FIVE
    ),
    "SETTING-STORE-PATH": Cause(HIDES, PAGES["SETTING-STORE-PATH"].title, start.store_elsewhere),
    # Files of the log and the queues.
    "LOG-MISSING": Cause(LOSES, "The log is gone: a broker that starts deletes the queues as well.", log.log_missing),
    "LOG-STRAY": Cause(STOPS, CHECKS["LOG-STRAY"].title, log.log_strays, (_ASIDE,)),
    "EMPTY-FILE": Cause(
        STOPS, PAGES["EMPTY-FILE"].title, log.empty_files, (_ASIDE,),
        versions=("4.9",),
    ),
    "LOG-FILE-SIZE": Cause(STOPS, CHECKS["LOG-FILE-SIZE"].title, log.file_size),
    "QUEUE-STRAY": Cause(STOPS, CHECKS["QUEUE-STRAY"].title, log.queue_strays, (_ASIDE,)),
    "QUEUE-FILE-SIZE": Cause(STOPS, CHECKS["QUEUE-FILE-SIZE"].title, log.queue_file_sizes, (_RECOVER_ALL,)),
    "QUEUE-TYPE": Cause(
        STOPS, PAGES["QUEUE-TYPE"].title, log.queue_type, (_CONFIG,), versions=FIVE
    ),
    "QUEUE-ROCKSDB-DAMAGED": Cause(
        STOPS, CHECKS["QUEUE-ROCKSDB-DAMAGED"].title, of_findings("QUEUE-ROCKSDB-DAMAGED"),
        ("mqtool explain QUEUE-ROCKSDB-DAMAGED",), versions=FIVE,
    ),
    "TIMER-FILE-SIZE": Cause(STOPS, CHECKS["TIMER-FILE-SIZE"].title, log.timer_files, (_ASIDE,), versions=FIVE),
    "LOG-OUT-OF-MEMORY": Cause(
        STOPS, PAGES["LOG-OUT-OF-MEMORY"].title, log.out_of_memory, (_RECOVER,),
        versions=("4.9",),
    ),
    "START-REFUSED": Cause(STOPS, PAGES["START-REFUSED"].title, log.index_folders, (_ASIDE,)),
    "CONFIG-UNREADABLE": Cause(LOSES, CHECKS["CONFIG-UNREADABLE"].title, delivery.unreadable_tables),
    # The log.
    "LOG-SECOND-KIND": Cause(
        LOSES, PAGES["LOG-SECOND-KIND"].title, log.second_kind, (_EXPORT,), versions=("4.9",)
    ),
    "LOG-NAME": Cause(LOSES, CHECKS["LOG-NAME"].title, log.misnamed, (_RECOVER,)),
    "LOG-GAP": Cause(LOSES, CHECKS["LOG-GAP"].title, of_findings("LOG-GAP"), (_RECOVER,)),
    "LOG-DAMAGED": Cause(
        LOSES, PAGES["LOG-DAMAGED"].title,
        cuts("LOG-MAGIC", "LOG-SIZES", "LOG-BLANK", "LOG-CRC", "LOG-PROPERTIES", "LOG-PROPERTY-CRC", "LOG-ENTRY"),
        (_RECOVER,),
    ),
    "LOG-TORN": Cause(LOSES, CHECKS["LOG-TORN"].title, cuts("LOG-TORN"), (_RECOVER,)),
    "LOG-POSITION": Cause(LOSES, CHECKS["LOG-POSITION"].title, of_findings("LOG-POSITION"), (_RECOVER,)),
    "LOG-QUEUE-ORDER": Cause(LOSES, CHECKS["LOG-QUEUE-ORDER"].title, log.queue_order, (_RECOVER_ALL,)),
    "QUEUE-BEYOND": Cause(LOSES, CHECKS["QUEUE-BEYOND"].title, of_findings("QUEUE-BEYOND"), (_RECOVER,)),
    # Delivery: what hides most first.
    "LOG-TOPIC": Cause(HIDES, CHECKS["LOG-TOPIC"].title, of_findings("LOG-TOPIC"), (_RECOVER,)),
    "LOG-PROPERTY-TEXT": Cause(
        HIDES, CHECKS["LOG-PROPERTY-TEXT"].title, of_findings("LOG-PROPERTY-TEXT"), (_RECOVER,)
    ),
    "SETTING-ROCKSDB": Cause(
        HIDES, PAGES["SETTING-ROCKSDB"].title, start.rocksdb_setting
    ),
    "SETTING-PERMISSION": Cause(HIDES, PAGES["SETTING-PERMISSION"].title, start.broker_permission),
    "SETTING-TIMER": Cause(HIDES, PAGES["SETTING-TIMER"].title, start.timer_off, versions=FIVE),
    "BATCH-QUEUES": Cause(
        HIDES, PAGES["BATCH-QUEUES"].title, log.batch_queues,
        (_EXPORT,), versions=("4.9",),
    ),
    "QUEUES-LOST": Cause(HIDES, PAGES["QUEUES-LOST"].title, log.queues_lost, (_RECOVER_ALL,)),
    "QUEUE-NAME": Cause(HIDES, CHECKS["QUEUE-NAME"].title, log.left_by_recover("QUEUE-NAME")),
    "QUEUE-GAP": Cause(HIDES, CHECKS["QUEUE-GAP"].title, of_findings("QUEUE-GAP"), (_RECOVER_ALL,)),
    "QUEUE-MISSING": Cause(HIDES, CHECKS["QUEUE-MISSING"].title, log.queue_ends, (_RECOVER_ALL,)),
    "START-HIDES": Cause(HIDES, PAGES["START-HIDES"].title, lambda _: iter(()), (_RECOVER_ALL,)),
    "CHECKPOINT-AHEAD": Cause(
        HIDES, CHECKS["CHECKPOINT-AHEAD"].title, of_findings("CHECKPOINT-AHEAD"), (_RECOVER,)
    ),
    "CONFIG-NO-TOPIC": Cause(
        HIDES, CHECKS["CONFIG-NO-TOPIC"].title, of_findings("CONFIG-NO-TOPIC"), (_CONFIG,)
    ),
    "TOPIC-PERMISSION": Cause(
        HIDES, PAGES["TOPIC-PERMISSION"].title, delivery.topic_permissions,
        ("mqadmin updateTopicPerm {admin} -c {cluster} -t {topic} -p {expected}",),
    ),
    "TOPIC-QUEUES": Cause(
        HIDES, PAGES["TOPIC-QUEUES"].title, delivery.topic_queues,
        (_UPDATE_TOPIC + " -r {expected} -w {expected}",),
    ),
    "CONFIG-QUEUE-COUNT": Cause(
        HIDES, CHECKS["CONFIG-QUEUE-COUNT"].title, of_findings("CONFIG-QUEUE-COUNT"), (_CONFIG,)
    ),
    "GROUP-DISABLED": Cause(
        HIDES, PAGES["GROUP-DISABLED"].title, delivery.disabled_groups,
        ("mqadmin updateSubGroup {admin} -c {cluster} -g {group} -s true",),
    ),
    "CONFIG-OFFSET": Cause(
        HIDES, CHECKS["CONFIG-OFFSET"].title, delivery.offsets_ahead,
    ),
    "CONFIG-OFFSET-EXPIRED": Cause(
        HIDES, CHECKS["CONFIG-OFFSET-EXPIRED"].title, delivery.offsets_expired,
    ),
    "CONFIG-DELAY-OFFSET": Cause(
        HIDES, CHECKS["CONFIG-DELAY-OFFSET"].title, of_findings("CONFIG-DELAY-OFFSET"), (_CONFIG,)
    ),
    "HALF-STUCK": Cause(
        HIDES, PAGES["HALF-STUCK"].title, delivery.stuck_half_messages,
        ("mqtool pull --topic {topic} --queue 0 {at}",),
    ),
    "TIMER-MISSING": Cause(HIDES, CHECKS["TIMER-MISSING"].title, of_findings("TIMER-MISSING"), (log.TIMER,), FIVE),
    "TIMER-DAMAGED": Cause(
        HIDES, PAGES["TIMER-DAMAGED"].title, delivery.timer_damage,
        (log.TIMER,), FIVE,
    ),
    # Misbehaviour.
    "OFFSETS-LOST": Cause(HINDERS, PAGES["OFFSETS-LOST"].title, delivery.offsets_lost, (_CONFIG,)),
    "DELAY-LOST": Cause(
        HINDERS, PAGES["DELAY-LOST"].title, delivery.delay_offsets_lost, (_CONFIG,)
    ),
    "CONFIG-FROM-BACKUP": Cause(HINDERS, CHECKS["CONFIG-FROM-BACKUP"].title, delivery.tables_from_backup),
    "CLOCK-AHEAD": Cause(HINDERS, PAGES["CLOCK-AHEAD"].title, log.clock),
    "CHECKPOINT-SIZE": Cause(HINDERS, CHECKS["CHECKPOINT-SIZE"].title, of_findings("CHECKPOINT-SIZE"), (_RECOVER,)),
    "CHECKPOINT-MISSING": Cause(
        HINDERS, CHECKS["CHECKPOINT-MISSING"].title, of_findings("CHECKPOINT-MISSING"), (_RECOVER,)
    ),
    "INDEX-FILE-SIZE": Cause(HINDERS, CHECKS["INDEX-FILE-SIZE"].title, of_findings("INDEX-FILE-SIZE"), (_INDEX,)),
    "LOG-STALE": Cause(HINDERS, CHECKS["LOG-STALE"].title, of_findings("LOG-STALE"), (_RECOVER,)),
    # Not checked.
    "QUEUE-ROCKSDB": Cause(UNSEEN, CHECKS["QUEUE-ROCKSDB"].title, of_findings("QUEUE-ROCKSDB"), (_ROCKSDB,)),
    "CONFIG-ROCKSDB": Cause(UNSEEN, CHECKS["CONFIG-ROCKSDB"].title, of_findings("CONFIG-ROCKSDB"), (_ROCKSDB,)),
    # Worth knowing.
    "ABORT-FILE": Cause(NOTHING, CHECKS["ABORT-FILE"].title, of_findings("ABORT-FILE")),
    "LOG-START": Cause(NOTHING, CHECKS["LOG-START"].title, of_findings("LOG-START")),
    "CONFIG-MISSING": Cause(NOTHING, CHECKS["CONFIG-MISSING"].title, of_findings("CONFIG-MISSING")),
}  # fmt: skip

_COVERED = {
    *CAUSES, "LOG-EMPTY-FILE", "LOG-MAGIC", "LOG-SIZES", "LOG-BLANK", "LOG-CRC", "LOG-PROPERTIES", "LOG-PROPERTY-CRC",
    "LOG-ENTRY",
}  # fmt: skip
"""Checks whose findings the table above covers."""
_OF_STORE = (
    "LOG-",
    "QUEUE",
    "CHECKPOINT-",
    "START-",
    "EMPTY-",
    "BATCH-",
    "SETTING-",
    "CONFIG-UN",
    "TIMER-FILE",
    "INDEX-",
)
_QUEUE_CAUSES = {"QUEUE-MISSING", "QUEUES-LOST", "QUEUE-GAP", "QUEUE-NAME"}
"""Causes by which messages of any age may lack their queue."""
_OF_LOG = ("mqtool recover ", "mqtool rebuild ", "mqtool salvage ")
_REMEDIES = (("QUEUE-", _RECOVER_ALL), ("INDEX-", _INDEX), ("TIMER-", log.TIMER))


def examine(case: Case) -> tuple[list[StartOutcome], list[Diagnosis]]:
    """Return what happens when a broker is started now, and the causes found, the worst and likeliest first.

    What could not be examined goes to ``case.problems``.
    """
    signs = _signs(case)
    lost = [sign for sign in signs.get("CONFIG-OFFSET", ()) if _key(sign) not in case.queues]
    foretold = broker.foretell(case, bool(lost) or not _QUEUE_CAUSES.isdisjoint(signs))
    for sign in lost:
        if _key(sign) in foretold.in_log:
            signs["CONFIG-OFFSET"].remove(sign)
            signs.setdefault("QUEUES-LOST", []).append(dataclasses.replace(sign, commands=None))
    if "LOG-OUT-OF-MEMORY" in signs:
        signs["LOG-OUT-OF-MEMORY"] = list(broker.too_large(foretold, signs["LOG-OUT-OF-MEMORY"]))
    diagnoses = [
        diagnosis
        for code, cause in CAUSES.items()
        if signs.get(code)
        for diagnosis in _diagnose(case, code, cause, signs[code])
    ]
    diagnoses += _others(case)
    is_told = functools.partial(_is_told, diagnoses)
    for code, more in broker.unexplained(case, foretold, is_told, signs.get("LOG-DAMAGED", [])[:1]):
        diagnoses = [diagnosis for diagnosis in diagnoses if diagnosis.code != code]
        diagnoses += _diagnose(case, code, CAUSES[code], more + signs.get(code, []))
    stopped = {version: _stopping(diagnoses, version) for version in case.versions}
    order = list(Severity)
    diagnoses.sort(key=lambda diagnosis: (-order.index(diagnosis.severity), diagnosis.effect.rank))
    return broker.starts_of(foretold, case.versions, stopped), diagnoses


def examine_rights(
    root: Path, log_folders: Iterable[Path], user: User, versions: tuple[str, ...]
) -> tuple[list[StartOutcome], list[Diagnosis]]:
    """Return what ``examine`` would for a store that this user may not open: only permissions are examined.

    Args:
        root: of the store.
        log_folders: where the log is according to the settings, if they say so.
        user: the user that the broker runs as.
        versions: the relevant ones.
    """
    signs = list(start.refused_files(root, log_folders, user))
    if not signs:
        return [], []
    cause, code = CAUSES["NOT-PERMITTED"], "NOT-PERMITTED"
    commands = list(dict.fromkeys(command for sign in signs for command in sign.commands or ()))[:_MAX_COMMANDS]
    severity = SEVERITIES[cause.effect]
    diagnosis = Diagnosis(code, severity, cause.effect, versions, cause.title, len(signs), signs[:MAX_SEEN], commands)
    return [StartOutcome(versions, False, (f"see {code} below",))], [diagnosis]


def _is_told(diagnoses: list[Diagnosis], version: str, outcome: str) -> bool:
    effects = {"stops": {STOPS}, "deletes": {STOPS, LOSES}, "hides": {STOPS, LOSES, HIDES}}[outcome]
    return any(
        diagnosis.effect in effects and version in diagnosis.versions and diagnosis.severity is not Severity.NOTE
        for diagnosis in diagnoses
        if diagnosis.code.startswith(_OF_STORE)
    )


def _stopping(diagnoses: list[Diagnosis], version: str) -> list[str]:
    return [
        diagnosis.code
        for diagnosis in diagnoses
        if diagnosis.effect is STOPS and diagnosis.severity is Severity.ERROR and version in diagnosis.versions
    ]


def _key(sign: Sign) -> QueueKey:
    return sign.topic or "", sign.queue_id or 0


def _signs(case: Case) -> dict[str, list[Sign]]:
    """Return the signs of each cause."""
    seen: dict[str, list[Sign]] = {}
    for code, cause in CAUSES.items():
        signs: list[Sign] = []
        try:
            signs.extend(cause.probe(case))
        except MqtoolError as error:
            _note(case, str(error))
        except OSError as error:
            _note(case, f"{error.filename or 'a file'}: {error.strerror or error}")
        if signs:
            seen[code] = signs
    return seen


def _note(case: Case, problem: str) -> None:
    if problem not in case.problems:
        case.problems.append(problem)


def _diagnose(case: Case, code: str, cause: Cause, signs: list[Sign]) -> Iterator[Diagnosis]:
    """Weigh signs, those of each effect together: what affects only other versions is a note."""
    hitting = [sign for sign in signs if set(sign.versions or cause.versions) & set(case.versions)]
    for effect in Effect:
        alike = [sign for sign in hitting or signs if (sign.effect or cause.effect) is effect]
        if alike:
            yield _diagnosis(case, code, cause, alike, effect, bool(hitting))


def _diagnosis(case: Case, code: str, cause: Cause, signs: list[Sign], effect: Effect, is_hitting: bool) -> Diagnosis:
    hit = {version for sign in signs for version in sign.versions or cause.versions}
    if is_hitting:
        hit &= set(case.versions)
    commands = dict.fromkeys(command for sign in signs for command in _commands(case, code, cause, sign))
    if any(command.startswith(_RECOVER_WHOLE) for command in commands):  # which does what the short form does too
        commands.pop(case.fill("mqtool recover {at}", signs[0]), None)
    return Diagnosis(
        code=code,
        severity=SEVERITIES[effect] if is_hitting else Severity.NOTE,
        effect=effect,
        versions=tuple(version for version in ALL if version in hit),
        title=cause.title,
        count=len(signs),
        seen=signs[:MAX_SEEN],
        next=list(commands)[:_MAX_COMMANDS],
    )


def _commands(case: Case, code: str, cause: Cause, sign: Sign) -> Iterator[str]:
    commands = sign.commands
    if commands is None:
        commands = tuple(case.fill(template, sign) for template in cause.next)
    for command in commands:
        if command.startswith("mqtool recover ") and (
            case.needs_new_store or (code == "START-HIDES" and not case.has_recover_work)
        ):
            yield case.fill(_NEW_STORE, sign)
        elif command.startswith(_REBUILD_CONFIG) and not case.is_rebuilt(sign):
            yield f"mqtool explain {code}"
        elif case.elsewhere is None or not command.startswith(_OF_LOG):
            yield command
        elif case.elsewhere.setting:  # repairs refuse a log of which a part is elsewhere
            yield case.change_setting("storePathCommitLog", case.elsewhere.setting)
        elif case.elsewhere.lacking:
            yield shlex.join(["cp", "-a", *map(str, case.elsewhere.lacking), str(case.elsewhere.folders[0])])


def _others(case: Case) -> Iterator[Diagnosis]:
    """Yield the other findings of ``verify``, one cause each."""
    for code in case.findings:
        check = CHECKS[code]
        if code in _COVERED or check.severity is Severity.NOTE:
            continue
        effect = LOSES if check.severity is Severity.ERROR else HINDERS
        remedy = next((template for prefix, template in _REMEDIES if code.startswith(prefix)), f"mqtool explain {code}")
        probe = log.left_by_recover(code) if code == "QUEUE-EXT" else of_findings(code)
        cause = Cause(effect, check.title, probe, (remedy,))
        yield from _diagnose(case, code, cause, list(cause.probe(case)))
