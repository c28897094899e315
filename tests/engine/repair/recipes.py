"""What ``verify`` finds in each of the 88 recorded cases of damage, by thought about what their operations do.

``places`` name the damage where it is: all findings that are no mere consequence. ``also`` are the codes of the
consequences: where a message is lost, its unit and its entries point to nothing, and its queue lacks a number.
``quick`` are the codes that the quick level finds: it looks at the last two segments of the log, at the ends of the
queues and at no index entry.

Nothing but the queues and the index shows that whole records at the end of a log are gone (``cq-ahead-of-log``,
``last-segment-missing``), and nothing but the index that a property is another (``property-byte``).
"""

import dataclasses

Place = tuple[str, str | None, int | None]
"""Code, file, byte in the file."""


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The errors and warnings that are due."""

    places: list[Place]
    also: set[str]
    quick: set[str]


SOUND = Recipe([], set(), set())
"""A control, or a checkpoint that lags as it ordinarily may."""


_NEVER_QUICK = {"INDEX-ENTRY", "INDEX-BEYOND", "QUEUE-DANGLING"}
"""Codes that the quick level does not find: it does not look where they would show."""


def _found(*places: str, also: str = "", missed: str = "") -> Recipe:
    """Return a recipe.

    Args:
        places: code, file and byte of each, as words.
        also: the codes of the consequences.
        missed: the codes that the quick level finds elsewhere, but not here.
    """
    named, consequences = [_place(place) for place in places], {*also.split()}
    codes = {code for code, _, _ in named} | consequences
    return Recipe(named, consequences, codes - _NEVER_QUICK - {*missed.split()})


def _place(words: str) -> Place:
    code, _, rest = words.partition(" ")
    file, _, at = rest.partition(" ")
    return code, file or None, int(at) if at else None


_OF_STORES: dict[str, dict[str, Recipe]] = {
    "mixed-497-clean": {
        "control[-abort] checkpoint-middle-abort": SOUND,
        "tail-zeros-mid-record[-abort]": _found(
            "LOG-TORN commitlog/00000000000000196608 54942", also="INDEX-BEYOND QUEUE-BEYOND"
        ),
        "tail-zeros-many-records[-abort]": _found(
            "LOG-TORN commitlog/00000000000000196608 40306", also="INDEX-BEYOND QUEUE-BEYOND"
        ),
        "half-log-zeros-abort": _found(
            "LOG-TORN commitlog/00000000000000131072 39693", also="INDEX-BEYOND QUEUE-BEYOND"
        ),
        "body-byte[-abort]": _found("LOG-CRC commitlog/00000000000000196608 40004"),
        "total-size-plus-1 total-size-huge total-size-negative-abort topic-length": _found(
            "LOG-SIZES commitlog/00000000000000196608 40004", also="INDEX-ENTRY LOG-QUEUE-ORDER QUEUE-DANGLING"
        ),
        "magic": _found(
            "LOG-MAGIC commitlog/00000000000000196608 40004", also="INDEX-ENTRY LOG-QUEUE-ORDER QUEUE-DANGLING"
        ),
        "property-byte-abort": _found("INDEX-ENTRY index/20261121013406192 5140"),
        "cq-last-unit-missing": _found("QUEUE-MISSING consumequeue/OrderEvents/3/00000000000000000400 20"),
        "cq-torn-last-unit": _found("QUEUE-TORN consumequeue/OrderEvents/3/00000000000000000400 20"),
        "consumequeue-deleted[-abort] queues-deleted-checkpoint-middle-abort": _found("QUEUE-MISSING consumequeue"),
        "checkpoint-deleted-abort": _found("CHECKPOINT-MISSING checkpoint"),
        "full-rebuild": _found("CHECKPOINT-MISSING checkpoint", "QUEUE-MISSING consumequeue", "INDEX-MISSING index"),
        "last-file-empty": _found(
            "LOG-EMPTY-FILE commitlog/00000000000000196608",
            "QUEUE-BEYOND consumequeue/OrderEvents/0/00000000000000000000 260",
            "QUEUE-BEYOND consumequeue/OrderEvents/1/00000000000000000400 120",
            "QUEUE-BEYOND consumequeue/OrderEvents/2/00000000000000000000 220",
            "QUEUE-BEYOND consumequeue/OrderEvents/3/00000000000000000000 240",
            "QUEUE-BEYOND consumequeue/log-x/0/00000000000000001200 20",
            "QUEUE-BEYOND consumequeue/pay_events/0/00000000000000000400 120",
            "QUEUE-BEYOND consumequeue/pay_events/1/00000000000000000400 60",
            also="INDEX-BEYOND",
        ),
        "stale-records-after-end": _found("LOG-STALE commitlog/00000000000000196608 55292"),
        "cq-ahead-of-log": _found(
            "QUEUE-BEYOND consumequeue/OrderEvents/1/00000000000000000400 360",
            "QUEUE-BEYOND consumequeue/OrderEvents/2/00000000000000000000 380",
            "QUEUE-BEYOND consumequeue/OrderEvents/3/00000000000000000400 20",
            "QUEUE-BEYOND consumequeue/log-x/0/00000000000000001600 200",
            "QUEUE-BEYOND consumequeue/pay_events/0/00000000000000000800 140",
            "QUEUE-BEYOND consumequeue/pay_events/1/00000000000000000800 20",
            also="INDEX-BEYOND",
        ),
        "log-ahead-of-cq[-abort]": _found(
            "QUEUE-MISSING consumequeue/OrderEvents/0/00000000000000000400 80",
            "QUEUE-MISSING consumequeue/OrderEvents/1/00000000000000000400 360",
            "QUEUE-MISSING consumequeue/OrderEvents/2/00000000000000000000 380",
            "QUEUE-MISSING consumequeue/OrderEvents/3/00000000000000000400 20",
            "QUEUE-MISSING consumequeue/log-x/0/00000000000000001600 180",
            "QUEUE-MISSING consumequeue/pay_events/0/00000000000000000800 140",
            "QUEUE-MISSING consumequeue/pay_events/1/00000000000000000800 0",
        ),
        "zero-page-last-segment": _found(
            "LOG-PROPERTY-TEXT commitlog/00000000000000196608 44633",
            "QUEUE-TAGS consumequeue/pay_events/0/00000000000000000800 60",
            "INDEX-MISSING commitlog/00000000000000196608 44633",
            "LOG-MAGIC commitlog/00000000000000196608 45119",
            also="INDEX-ENTRY LOG-QUEUE-ORDER QUEUE-DANGLING",
            missed="INDEX-MISSING",
        ),
        "queues-and-index-deleted-checkpoint-late-abort": _found("QUEUE-MISSING consumequeue", "INDEX-MISSING index"),
    },
    "mixed-533-clean": {
        "control[-abort] checkpoint-zero-abort checkpoint-middle-abort": SOUND,
        "body-byte-first-segment": _found("LOG-CRC commitlog/00000000000000000000 15746", missed="LOG-CRC"),
        "body-byte-first-segment-no-checkpoint-abort": _found(
            "CHECKPOINT-MISSING checkpoint", "LOG-CRC commitlog/00000000000000000000 15746", missed="LOG-CRC"
        ),
        "zero-page-second-segment-no-checkpoint-abort": _found(
            "CHECKPOINT-MISSING checkpoint", "LOG-CRC commitlog/00000000000000065536 6711", missed="LOG-CRC"
        ),
        "magic-blank": _found(
            "LOG-BLANK commitlog/00000000000000262144 19735", also="INDEX-ENTRY LOG-QUEUE-ORDER QUEUE-DANGLING"
        ),
        "queue-id-full-scan": _found(
            "CHECKPOINT-MISSING checkpoint",
            "LOG-QUEUE-ORDER commitlog/00000000000000262144 24424",
            "LOG-QUEUE-ORDER commitlog/00000000000000262144 19735",
            "QUEUE-MISSING consumequeue",
            "INDEX-MISSING index",
        ),
        "queue-offset-ahead-full-scan": _found(
            "CHECKPOINT-MISSING checkpoint",
            "LOG-QUEUE-ORDER commitlog/00000000000000262144 19735",
            "QUEUE-MISSING consumequeue",
            "INDEX-MISSING index",
        ),
        "physical-offset-field-full-scan": _found(
            "CHECKPOINT-MISSING checkpoint",
            "LOG-POSITION commitlog/00000000000000262144 19735",
            "QUEUE-MISSING consumequeue",
            "INDEX-MISSING index",
        ),
        "cq-torn-last-unit": _found("QUEUE-TORN consumequeue/OrderEvents/3/00000000000000000400 80"),
        "cq-last-unit-missing": _found("QUEUE-MISSING consumequeue/OrderEvents/3/00000000000000000400 80"),
        "cq-unit-past-log-end": _found("QUEUE-BEYOND consumequeue/OrderEvents/3/00000000000000000400 100"),
        "cq-middle-unit-zero": _found("QUEUE-MISSING consumequeue/OrderEvents/2/00000000000000000000 160"),
        "consumequeue-deleted[-abort] queues-deleted-checkpoint-middle-abort": _found("QUEUE-MISSING consumequeue"),
        "index-deleted[-abort]": _found("INDEX-MISSING index"),
        "checkpoint-future-abort": _found(
            "CHECKPOINT-AHEAD checkpoint 0", "CHECKPOINT-AHEAD checkpoint 8", "CHECKPOINT-AHEAD checkpoint 16"
        ),
        "commitlog-stray-file": _found("LOG-STRAY commitlog/.00000000000000000000.swp"),
        "last-file-short": _found("LOG-FILE-SIZE commitlog/00000000000000262144 32768"),
        "middle-segment-missing": _found(
            "LOG-GAP commitlog/00000000000000196608 0",
            also="INDEX-ENTRY LOG-QUEUE-ORDER QUEUE-DANGLING",
            missed="LOG-QUEUE-ORDER",
        ),
        "last-segment-missing": _found(
            "QUEUE-BEYOND consumequeue/OrderEvents/0/00000000000000000400 180",
            "QUEUE-BEYOND consumequeue/OrderEvents/1/00000000000000000000 300",
            "QUEUE-BEYOND consumequeue/OrderEvents/2/00000000000000000000 300",
            "QUEUE-BEYOND consumequeue/OrderEvents/3/00000000000000000400 0",
            "QUEUE-BEYOND consumequeue/log-x/0/00000000000000001200 280",
            "QUEUE-BEYOND consumequeue/pay_events/0/00000000000000000400 180",
            "QUEUE-BEYOND consumequeue/pay_events/1/00000000000000000400 380",
            also="INDEX-BEYOND",
        ),
        "stale-records-after-end-abort": _found("LOG-STALE commitlog/00000000000000262144 28150"),
        "cq-ahead-of-log-abort": _found(
            "QUEUE-BEYOND consumequeue/OrderEvents/1/00000000000000000400 60",
            "QUEUE-BEYOND consumequeue/OrderEvents/2/00000000000000000000 380",
            "QUEUE-BEYOND consumequeue/OrderEvents/3/00000000000000000400 80",
            "QUEUE-BEYOND consumequeue/log-x/0/00000000000000001600 200",
            "QUEUE-BEYOND consumequeue/pay_events/0/00000000000000000800 0",
            "QUEUE-BEYOND consumequeue/pay_events/1/00000000000000000800 160",
            also="INDEX-BEYOND",
        ),
        "log-far-ahead-of-cq[-abort]": _found(
            "QUEUE-MISSING consumequeue/OrderEvents/0/00000000000000000400 60",
            "QUEUE-MISSING consumequeue/OrderEvents/1/00000000000000000000 180",
            "QUEUE-MISSING consumequeue/OrderEvents/2/00000000000000000000 160",
            "QUEUE-MISSING consumequeue/OrderEvents/3/00000000000000000000 260",
            "QUEUE-MISSING consumequeue/log-x/0/00000000000000000800 220",
            "QUEUE-MISSING consumequeue/pay_events/0/00000000000000000000 280",
            "QUEUE-MISSING consumequeue/pay_events/1/00000000000000000400 100",
        ),
        "full-rebuild": _found("CHECKPOINT-MISSING checkpoint", "QUEUE-MISSING consumequeue", "INDEX-MISSING index"),
        "last-blank-magic-broken": _found("LOG-MAGIC commitlog/00000000000000196608 65368"),
        "one-queue-deleted": _found("QUEUE-MISSING consumequeue/OrderEvents/2"),
        "queues-and-index-deleted-checkpoint-late-abort": _found("QUEUE-MISSING consumequeue", "INDEX-MISSING index"),
    },
    "mixed-533-kill": {
        "control": SOUND,
        "body-byte": _found("LOG-CRC commitlog/00000000000000262144 8840"),
        "tail-zeros-many-records": _found(
            "LOG-TORN commitlog/00000000000000262144 11159", also="INDEX-BEYOND QUEUE-BEYOND"
        ),
        "last-file-empty": _found("LOG-EMPTY-FILE commitlog/00000000000000327680"),
        "log-ahead-of-cq": _found(
            "QUEUE-MISSING consumequeue/OrderEvents/0/00000000000000000400 20",
            "QUEUE-MISSING consumequeue/OrderEvents/1/00000000000000000400 120",
            "QUEUE-MISSING consumequeue/OrderEvents/2/00000000000000000400 280",
            "QUEUE-MISSING consumequeue/OrderEvents/3/00000000000000000400 20",
            "QUEUE-MISSING consumequeue/log-x/0/00000000000000001600 180",
            "QUEUE-MISSING consumequeue/pay_events/0/00000000000000000800 140",
            "QUEUE-MISSING consumequeue/pay_events/1/00000000000000000800 0",
        ),
        "full-rebuild": _found("CHECKPOINT-MISSING checkpoint", "QUEUE-MISSING consumequeue", "INDEX-MISSING index"),
        "checkpoint-deleted": _found("CHECKPOINT-MISSING checkpoint"),
    },
    "mixed-497-kill": {
        "control": SOUND,
        "checkpoint-deleted": _found("CHECKPOINT-MISSING checkpoint"),
        "last-file-empty": _found("LOG-EMPTY-FILE commitlog/00000000000000262144"),
    },
    "mixed-550-kill": {
        "control": SOUND,
        "body-byte": _found("LOG-CRC commitlog/00000000000000262144 9232"),
        "full-rebuild": _found("CHECKPOINT-MISSING checkpoint", "QUEUE-MISSING consumequeue", "INDEX-MISSING index"),
    },
    "many-533-clean": {
        "control[-abort]": SOUND,
        "full-rebuild": _found("CHECKPOINT-MISSING checkpoint", "QUEUE-MISSING consumequeue", "INDEX-MISSING index"),
        "consumequeue-deleted[-abort]": _found("QUEUE-MISSING consumequeue"),
        "checkpoint-deleted-abort": _found("CHECKPOINT-MISSING checkpoint"),
        "half-log-zeros-abort": _found(
            "LOG-TORN commitlog/00000000000000114688 2583", also="INDEX-BEYOND QUEUE-BEYOND"
        ),
        "middle-segment-missing-no-checkpoint-abort": _found(
            "LOG-GAP commitlog/00000000000000147456 0",
            "CHECKPOINT-MISSING checkpoint",
            also="INDEX-ENTRY LOG-QUEUE-ORDER QUEUE-DANGLING",
            missed="LOG-QUEUE-ORDER",
        ),
    },
    "special-533-clean": {
        "control[-abort]": SOUND,
        "full-rebuild": _found("CHECKPOINT-MISSING checkpoint", "QUEUE-MISSING consumequeue", "INDEX-MISSING index"),
        "consumequeue-deleted": _found("QUEUE-MISSING consumequeue"),
    },
}
"""By store and cases; ``[-abort]`` stands for two: one whose abort file was left as well makes no difference."""

RECIPES = {
    f"{store}/{case.replace('[-abort]', ending)}": recipe
    for store, recipes in _OF_STORES.items()
    for cases, recipe in recipes.items()
    for case in cases.split()
    for ending in (("", "-abort") if "[" in case else ("",))
}
