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


RECIPES: dict[str, Recipe] = {
    "mixed-497-clean/control": SOUND,
    "mixed-497-clean/control-abort": SOUND,
    "mixed-497-clean/tail-zeros-mid-record": Recipe(
        [
            ("LOG-TORN", "commitlog/00000000000000196608", 54942),
        ],
        also={"INDEX-BEYOND", "QUEUE-BEYOND"},
        quick={"LOG-TORN", "QUEUE-BEYOND"},
    ),
    "mixed-497-clean/tail-zeros-mid-record-abort": Recipe(
        [
            ("LOG-TORN", "commitlog/00000000000000196608", 54942),
        ],
        also={"INDEX-BEYOND", "QUEUE-BEYOND"},
        quick={"LOG-TORN", "QUEUE-BEYOND"},
    ),
    "mixed-497-clean/tail-zeros-many-records": Recipe(
        [
            ("LOG-TORN", "commitlog/00000000000000196608", 40306),
        ],
        also={"INDEX-BEYOND", "QUEUE-BEYOND"},
        quick={"LOG-TORN", "QUEUE-BEYOND"},
    ),
    "mixed-497-clean/tail-zeros-many-records-abort": Recipe(
        [
            ("LOG-TORN", "commitlog/00000000000000196608", 40306),
        ],
        also={"INDEX-BEYOND", "QUEUE-BEYOND"},
        quick={"LOG-TORN", "QUEUE-BEYOND"},
    ),
    "mixed-497-clean/half-log-zeros-abort": Recipe(
        [
            ("LOG-TORN", "commitlog/00000000000000131072", 39693),
        ],
        also={"INDEX-BEYOND", "QUEUE-BEYOND"},
        quick={"LOG-TORN", "QUEUE-BEYOND"},
    ),
    "mixed-497-clean/body-byte": Recipe(
        [
            ("LOG-CRC", "commitlog/00000000000000196608", 40004),
        ],
        also=set(),
        quick={"LOG-CRC"},
    ),
    "mixed-497-clean/body-byte-abort": Recipe(
        [
            ("LOG-CRC", "commitlog/00000000000000196608", 40004),
        ],
        also=set(),
        quick={"LOG-CRC"},
    ),
    "mixed-497-clean/total-size-plus-1": Recipe(
        [
            ("LOG-SIZES", "commitlog/00000000000000196608", 40004),
        ],
        also={"LOG-QUEUE-ORDER", "QUEUE-DANGLING", "INDEX-ENTRY"},
        quick={"LOG-SIZES", "LOG-QUEUE-ORDER"},
    ),
    "mixed-497-clean/total-size-huge": Recipe(
        [
            ("LOG-SIZES", "commitlog/00000000000000196608", 40004),
        ],
        also={"LOG-QUEUE-ORDER", "QUEUE-DANGLING", "INDEX-ENTRY"},
        quick={"LOG-SIZES", "LOG-QUEUE-ORDER"},
    ),
    "mixed-497-clean/total-size-negative-abort": Recipe(
        [
            ("LOG-SIZES", "commitlog/00000000000000196608", 40004),
        ],
        also={"LOG-QUEUE-ORDER", "QUEUE-DANGLING", "INDEX-ENTRY"},
        quick={"LOG-SIZES", "LOG-QUEUE-ORDER"},
    ),
    "mixed-497-clean/magic": Recipe(
        [
            ("LOG-MAGIC", "commitlog/00000000000000196608", 40004),
        ],
        also={"LOG-QUEUE-ORDER", "QUEUE-DANGLING", "INDEX-ENTRY"},
        quick={"LOG-QUEUE-ORDER", "LOG-MAGIC"},
    ),
    "mixed-497-clean/topic-length": Recipe(
        [
            ("LOG-SIZES", "commitlog/00000000000000196608", 40004),
        ],
        also={"LOG-QUEUE-ORDER", "QUEUE-DANGLING", "INDEX-ENTRY"},
        quick={"LOG-SIZES", "LOG-QUEUE-ORDER"},
    ),
    "mixed-497-clean/property-byte-abort": Recipe(
        [
            ("INDEX-ENTRY", "index/20261121013406192", 5140),
        ],
        also=set(),
        quick=set(),
    ),
    "mixed-497-clean/cq-last-unit-missing": Recipe(
        [
            ("QUEUE-MISSING", "consumequeue/OrderEvents/3/00000000000000000400", 20),
        ],
        also=set(),
        quick={"QUEUE-MISSING"},
    ),
    "mixed-497-clean/cq-torn-last-unit": Recipe(
        [
            ("QUEUE-TORN", "consumequeue/OrderEvents/3/00000000000000000400", 20),
        ],
        also=set(),
        quick={"QUEUE-TORN"},
    ),
    "mixed-497-clean/consumequeue-deleted": Recipe(
        [
            ("QUEUE-MISSING", "consumequeue", None),
        ],
        also=set(),
        quick={"QUEUE-MISSING"},
    ),
    "mixed-497-clean/consumequeue-deleted-abort": Recipe(
        [
            ("QUEUE-MISSING", "consumequeue", None),
        ],
        also=set(),
        quick={"QUEUE-MISSING"},
    ),
    "mixed-497-clean/checkpoint-deleted-abort": Recipe(
        [
            ("CHECKPOINT-MISSING", "checkpoint", None),
        ],
        also=set(),
        quick={"CHECKPOINT-MISSING"},
    ),
    "mixed-497-clean/full-rebuild": Recipe(
        [
            ("CHECKPOINT-MISSING", "checkpoint", None),
            ("QUEUE-MISSING", "consumequeue", None),
            ("INDEX-MISSING", "index", None),
        ],
        also=set(),
        quick={"CHECKPOINT-MISSING", "QUEUE-MISSING", "INDEX-MISSING"},
    ),
    "mixed-497-clean/last-file-empty": Recipe(
        [
            ("LOG-EMPTY-FILE", "commitlog/00000000000000196608", None),
            ("QUEUE-BEYOND", "consumequeue/OrderEvents/0/00000000000000000000", 260),
            ("QUEUE-BEYOND", "consumequeue/OrderEvents/1/00000000000000000400", 120),
            ("QUEUE-BEYOND", "consumequeue/OrderEvents/2/00000000000000000000", 220),
            ("QUEUE-BEYOND", "consumequeue/OrderEvents/3/00000000000000000000", 240),
            ("QUEUE-BEYOND", "consumequeue/log-x/0/00000000000000001200", 20),
            ("QUEUE-BEYOND", "consumequeue/pay_events/0/00000000000000000400", 120),
            ("QUEUE-BEYOND", "consumequeue/pay_events/1/00000000000000000400", 60),
        ],
        also={"INDEX-BEYOND"},
        quick={"LOG-EMPTY-FILE", "QUEUE-BEYOND"},
    ),
    "mixed-497-clean/stale-records-after-end": Recipe(
        [
            ("LOG-STALE", "commitlog/00000000000000196608", 55292),
        ],
        also=set(),
        quick={"LOG-STALE"},
    ),
    "mixed-497-clean/cq-ahead-of-log": Recipe(
        [
            ("QUEUE-BEYOND", "consumequeue/OrderEvents/1/00000000000000000400", 360),
            ("QUEUE-BEYOND", "consumequeue/OrderEvents/2/00000000000000000000", 380),
            ("QUEUE-BEYOND", "consumequeue/OrderEvents/3/00000000000000000400", 20),
            ("QUEUE-BEYOND", "consumequeue/log-x/0/00000000000000001600", 200),
            ("QUEUE-BEYOND", "consumequeue/pay_events/0/00000000000000000800", 140),
            ("QUEUE-BEYOND", "consumequeue/pay_events/1/00000000000000000800", 20),
        ],
        also={"INDEX-BEYOND"},
        quick={"QUEUE-BEYOND"},
    ),
    "mixed-497-clean/log-ahead-of-cq": Recipe(
        [
            ("QUEUE-MISSING", "consumequeue/OrderEvents/0/00000000000000000400", 80),
            ("QUEUE-MISSING", "consumequeue/OrderEvents/1/00000000000000000400", 360),
            ("QUEUE-MISSING", "consumequeue/OrderEvents/2/00000000000000000000", 380),
            ("QUEUE-MISSING", "consumequeue/OrderEvents/3/00000000000000000400", 20),
            ("QUEUE-MISSING", "consumequeue/log-x/0/00000000000000001600", 180),
            ("QUEUE-MISSING", "consumequeue/pay_events/0/00000000000000000800", 140),
            ("QUEUE-MISSING", "consumequeue/pay_events/1/00000000000000000800", 0),
        ],
        also=set(),
        quick={"QUEUE-MISSING"},
    ),
    "mixed-497-clean/log-ahead-of-cq-abort": Recipe(
        [
            ("QUEUE-MISSING", "consumequeue/OrderEvents/0/00000000000000000400", 80),
            ("QUEUE-MISSING", "consumequeue/OrderEvents/1/00000000000000000400", 360),
            ("QUEUE-MISSING", "consumequeue/OrderEvents/2/00000000000000000000", 380),
            ("QUEUE-MISSING", "consumequeue/OrderEvents/3/00000000000000000400", 20),
            ("QUEUE-MISSING", "consumequeue/log-x/0/00000000000000001600", 180),
            ("QUEUE-MISSING", "consumequeue/pay_events/0/00000000000000000800", 140),
            ("QUEUE-MISSING", "consumequeue/pay_events/1/00000000000000000800", 0),
        ],
        also=set(),
        quick={"QUEUE-MISSING"},
    ),
    "mixed-497-clean/zero-page-last-segment": Recipe(
        [
            ("LOG-PROPERTY-TEXT", "commitlog/00000000000000196608", 44633),
            ("QUEUE-TAGS", "consumequeue/pay_events/0/00000000000000000800", 60),
            ("INDEX-MISSING", "commitlog/00000000000000196608", 44633),
            ("LOG-MAGIC", "commitlog/00000000000000196608", 45119),
        ],
        also={"LOG-QUEUE-ORDER", "QUEUE-DANGLING", "INDEX-ENTRY"},
        quick={"LOG-QUEUE-ORDER", "QUEUE-TAGS", "LOG-MAGIC", "LOG-PROPERTY-TEXT"},
    ),
    "mixed-497-clean/checkpoint-middle-abort": SOUND,
    "mixed-497-clean/queues-deleted-checkpoint-middle-abort": Recipe(
        [
            ("QUEUE-MISSING", "consumequeue", None),
        ],
        also=set(),
        quick={"QUEUE-MISSING"},
    ),
    "mixed-497-clean/queues-and-index-deleted-checkpoint-late-abort": Recipe(
        [
            ("QUEUE-MISSING", "consumequeue", None),
            ("INDEX-MISSING", "index", None),
        ],
        also=set(),
        quick={"QUEUE-MISSING", "INDEX-MISSING"},
    ),
    "mixed-533-clean/control": SOUND,
    "mixed-533-clean/control-abort": SOUND,
    "mixed-533-clean/body-byte-first-segment": Recipe(
        [
            ("LOG-CRC", "commitlog/00000000000000000000", 15746),
        ],
        also=set(),
        quick=set(),
    ),
    "mixed-533-clean/body-byte-first-segment-no-checkpoint-abort": Recipe(
        [
            ("CHECKPOINT-MISSING", "checkpoint", None),
            ("LOG-CRC", "commitlog/00000000000000000000", 15746),
        ],
        also=set(),
        quick={"CHECKPOINT-MISSING"},
    ),
    "mixed-533-clean/zero-page-second-segment-no-checkpoint-abort": Recipe(
        [
            ("CHECKPOINT-MISSING", "checkpoint", None),
            ("LOG-CRC", "commitlog/00000000000000065536", 6711),
        ],
        also=set(),
        quick={"CHECKPOINT-MISSING"},
    ),
    "mixed-533-clean/magic-blank": Recipe(
        [
            ("LOG-BLANK", "commitlog/00000000000000262144", 19735),
        ],
        also={"LOG-QUEUE-ORDER", "QUEUE-DANGLING", "INDEX-ENTRY"},
        quick={"LOG-BLANK", "LOG-QUEUE-ORDER"},
    ),
    "mixed-533-clean/queue-id-full-scan": Recipe(
        [
            ("CHECKPOINT-MISSING", "checkpoint", None),
            ("LOG-QUEUE-ORDER", "commitlog/00000000000000262144", 24424),
            ("LOG-QUEUE-ORDER", "commitlog/00000000000000262144", 19735),
            ("QUEUE-MISSING", "consumequeue", None),
            ("INDEX-MISSING", "index", None),
        ],
        also=set(),
        quick={"LOG-QUEUE-ORDER", "CHECKPOINT-MISSING", "QUEUE-MISSING", "INDEX-MISSING"},
    ),
    "mixed-533-clean/queue-offset-ahead-full-scan": Recipe(
        [
            ("CHECKPOINT-MISSING", "checkpoint", None),
            ("LOG-QUEUE-ORDER", "commitlog/00000000000000262144", 19735),
            ("QUEUE-MISSING", "consumequeue", None),
            ("INDEX-MISSING", "index", None),
        ],
        also=set(),
        quick={"LOG-QUEUE-ORDER", "CHECKPOINT-MISSING", "QUEUE-MISSING", "INDEX-MISSING"},
    ),
    "mixed-533-clean/physical-offset-field-full-scan": Recipe(
        [
            ("CHECKPOINT-MISSING", "checkpoint", None),
            ("LOG-POSITION", "commitlog/00000000000000262144", 19735),
            ("QUEUE-MISSING", "consumequeue", None),
            ("INDEX-MISSING", "index", None),
        ],
        also=set(),
        quick={"CHECKPOINT-MISSING", "QUEUE-MISSING", "INDEX-MISSING", "LOG-POSITION"},
    ),
    "mixed-533-clean/cq-torn-last-unit": Recipe(
        [
            ("QUEUE-TORN", "consumequeue/OrderEvents/3/00000000000000000400", 80),
        ],
        also=set(),
        quick={"QUEUE-TORN"},
    ),
    "mixed-533-clean/cq-last-unit-missing": Recipe(
        [
            ("QUEUE-MISSING", "consumequeue/OrderEvents/3/00000000000000000400", 80),
        ],
        also=set(),
        quick={"QUEUE-MISSING"},
    ),
    "mixed-533-clean/cq-unit-past-log-end": Recipe(
        [
            ("QUEUE-BEYOND", "consumequeue/OrderEvents/3/00000000000000000400", 100),
        ],
        also=set(),
        quick={"QUEUE-BEYOND"},
    ),
    "mixed-533-clean/cq-middle-unit-zero": Recipe(
        [
            ("QUEUE-MISSING", "consumequeue/OrderEvents/2/00000000000000000000", 160),
        ],
        also=set(),
        quick={"QUEUE-MISSING"},
    ),
    "mixed-533-clean/consumequeue-deleted": Recipe(
        [
            ("QUEUE-MISSING", "consumequeue", None),
        ],
        also=set(),
        quick={"QUEUE-MISSING"},
    ),
    "mixed-533-clean/consumequeue-deleted-abort": Recipe(
        [
            ("QUEUE-MISSING", "consumequeue", None),
        ],
        also=set(),
        quick={"QUEUE-MISSING"},
    ),
    "mixed-533-clean/index-deleted": Recipe(
        [
            ("INDEX-MISSING", "index", None),
        ],
        also=set(),
        quick={"INDEX-MISSING"},
    ),
    "mixed-533-clean/index-deleted-abort": Recipe(
        [
            ("INDEX-MISSING", "index", None),
        ],
        also=set(),
        quick={"INDEX-MISSING"},
    ),
    "mixed-533-clean/checkpoint-zero-abort": SOUND,
    "mixed-533-clean/checkpoint-future-abort": Recipe(
        [
            ("CHECKPOINT-AHEAD", "checkpoint", 0),
            ("CHECKPOINT-AHEAD", "checkpoint", 8),
            ("CHECKPOINT-AHEAD", "checkpoint", 16),
        ],
        also=set(),
        quick={"CHECKPOINT-AHEAD"},
    ),
    "mixed-533-clean/commitlog-stray-file": Recipe(
        [
            ("LOG-STRAY", "commitlog/.00000000000000000000.swp", None),
        ],
        also=set(),
        quick={"LOG-STRAY"},
    ),
    "mixed-533-clean/last-file-short": Recipe(
        [
            ("LOG-FILE-SIZE", "commitlog/00000000000000262144", 32768),
        ],
        also=set(),
        quick={"LOG-FILE-SIZE"},
    ),
    "mixed-533-clean/middle-segment-missing": Recipe(
        [
            ("LOG-GAP", "commitlog/00000000000000196608", 0),
        ],
        also={"LOG-QUEUE-ORDER", "QUEUE-DANGLING", "INDEX-ENTRY"},
        quick={"LOG-GAP"},
    ),
    "mixed-533-clean/last-segment-missing": Recipe(
        [
            ("QUEUE-BEYOND", "consumequeue/OrderEvents/0/00000000000000000400", 180),
            ("QUEUE-BEYOND", "consumequeue/OrderEvents/1/00000000000000000000", 300),
            ("QUEUE-BEYOND", "consumequeue/OrderEvents/2/00000000000000000000", 300),
            ("QUEUE-BEYOND", "consumequeue/OrderEvents/3/00000000000000000400", 0),
            ("QUEUE-BEYOND", "consumequeue/log-x/0/00000000000000001200", 280),
            ("QUEUE-BEYOND", "consumequeue/pay_events/0/00000000000000000400", 180),
            ("QUEUE-BEYOND", "consumequeue/pay_events/1/00000000000000000400", 380),
        ],
        also={"INDEX-BEYOND"},
        quick={"QUEUE-BEYOND"},
    ),
    "mixed-533-clean/stale-records-after-end-abort": Recipe(
        [
            ("LOG-STALE", "commitlog/00000000000000262144", 28150),
        ],
        also=set(),
        quick={"LOG-STALE"},
    ),
    "mixed-533-clean/cq-ahead-of-log-abort": Recipe(
        [
            ("QUEUE-BEYOND", "consumequeue/OrderEvents/1/00000000000000000400", 60),
            ("QUEUE-BEYOND", "consumequeue/OrderEvents/2/00000000000000000000", 380),
            ("QUEUE-BEYOND", "consumequeue/OrderEvents/3/00000000000000000400", 80),
            ("QUEUE-BEYOND", "consumequeue/log-x/0/00000000000000001600", 200),
            ("QUEUE-BEYOND", "consumequeue/pay_events/0/00000000000000000800", 0),
            ("QUEUE-BEYOND", "consumequeue/pay_events/1/00000000000000000800", 160),
        ],
        also={"INDEX-BEYOND"},
        quick={"QUEUE-BEYOND"},
    ),
    "mixed-533-clean/log-far-ahead-of-cq": Recipe(
        [
            ("QUEUE-MISSING", "consumequeue/OrderEvents/0/00000000000000000400", 60),
            ("QUEUE-MISSING", "consumequeue/OrderEvents/1/00000000000000000000", 180),
            ("QUEUE-MISSING", "consumequeue/OrderEvents/2/00000000000000000000", 160),
            ("QUEUE-MISSING", "consumequeue/OrderEvents/3/00000000000000000000", 260),
            ("QUEUE-MISSING", "consumequeue/log-x/0/00000000000000000800", 220),
            ("QUEUE-MISSING", "consumequeue/pay_events/0/00000000000000000000", 280),
            ("QUEUE-MISSING", "consumequeue/pay_events/1/00000000000000000400", 100),
        ],
        also=set(),
        quick={"QUEUE-MISSING"},
    ),
    "mixed-533-clean/log-far-ahead-of-cq-abort": Recipe(
        [
            ("QUEUE-MISSING", "consumequeue/OrderEvents/0/00000000000000000400", 60),
            ("QUEUE-MISSING", "consumequeue/OrderEvents/1/00000000000000000000", 180),
            ("QUEUE-MISSING", "consumequeue/OrderEvents/2/00000000000000000000", 160),
            ("QUEUE-MISSING", "consumequeue/OrderEvents/3/00000000000000000000", 260),
            ("QUEUE-MISSING", "consumequeue/log-x/0/00000000000000000800", 220),
            ("QUEUE-MISSING", "consumequeue/pay_events/0/00000000000000000000", 280),
            ("QUEUE-MISSING", "consumequeue/pay_events/1/00000000000000000400", 100),
        ],
        also=set(),
        quick={"QUEUE-MISSING"},
    ),
    "mixed-533-clean/full-rebuild": Recipe(
        [
            ("CHECKPOINT-MISSING", "checkpoint", None),
            ("QUEUE-MISSING", "consumequeue", None),
            ("INDEX-MISSING", "index", None),
        ],
        also=set(),
        quick={"CHECKPOINT-MISSING", "QUEUE-MISSING", "INDEX-MISSING"},
    ),
    "mixed-533-clean/last-blank-magic-broken": Recipe(
        [
            ("LOG-MAGIC", "commitlog/00000000000000196608", 65368),
        ],
        also=set(),
        quick={"LOG-MAGIC"},
    ),
    "mixed-533-clean/one-queue-deleted": Recipe(
        [
            ("QUEUE-MISSING", "consumequeue/OrderEvents/2", None),
        ],
        also=set(),
        quick={"QUEUE-MISSING"},
    ),
    "mixed-533-clean/checkpoint-middle-abort": SOUND,
    "mixed-533-clean/queues-deleted-checkpoint-middle-abort": Recipe(
        [
            ("QUEUE-MISSING", "consumequeue", None),
        ],
        also=set(),
        quick={"QUEUE-MISSING"},
    ),
    "mixed-533-clean/queues-and-index-deleted-checkpoint-late-abort": Recipe(
        [
            ("QUEUE-MISSING", "consumequeue", None),
            ("INDEX-MISSING", "index", None),
        ],
        also=set(),
        quick={"QUEUE-MISSING", "INDEX-MISSING"},
    ),
    "mixed-533-kill/control": SOUND,
    "mixed-533-kill/body-byte": Recipe(
        [
            ("LOG-CRC", "commitlog/00000000000000262144", 8840),
        ],
        also=set(),
        quick={"LOG-CRC"},
    ),
    "mixed-533-kill/tail-zeros-many-records": Recipe(
        [
            ("LOG-TORN", "commitlog/00000000000000262144", 11159),
        ],
        also={"INDEX-BEYOND", "QUEUE-BEYOND"},
        quick={"LOG-TORN", "QUEUE-BEYOND"},
    ),
    "mixed-533-kill/last-file-empty": Recipe(
        [
            ("LOG-EMPTY-FILE", "commitlog/00000000000000327680", None),
        ],
        also=set(),
        quick={"LOG-EMPTY-FILE"},
    ),
    "mixed-533-kill/log-ahead-of-cq": Recipe(
        [
            ("QUEUE-MISSING", "consumequeue/OrderEvents/0/00000000000000000400", 20),
            ("QUEUE-MISSING", "consumequeue/OrderEvents/1/00000000000000000400", 120),
            ("QUEUE-MISSING", "consumequeue/OrderEvents/2/00000000000000000400", 280),
            ("QUEUE-MISSING", "consumequeue/OrderEvents/3/00000000000000000400", 20),
            ("QUEUE-MISSING", "consumequeue/log-x/0/00000000000000001600", 180),
            ("QUEUE-MISSING", "consumequeue/pay_events/0/00000000000000000800", 140),
            ("QUEUE-MISSING", "consumequeue/pay_events/1/00000000000000000800", 0),
        ],
        also=set(),
        quick={"QUEUE-MISSING"},
    ),
    "mixed-533-kill/full-rebuild": Recipe(
        [
            ("CHECKPOINT-MISSING", "checkpoint", None),
            ("QUEUE-MISSING", "consumequeue", None),
            ("INDEX-MISSING", "index", None),
        ],
        also=set(),
        quick={"CHECKPOINT-MISSING", "QUEUE-MISSING", "INDEX-MISSING"},
    ),
    "mixed-533-kill/checkpoint-deleted": Recipe(
        [
            ("CHECKPOINT-MISSING", "checkpoint", None),
        ],
        also=set(),
        quick={"CHECKPOINT-MISSING"},
    ),
    "mixed-497-kill/control": SOUND,
    "mixed-497-kill/checkpoint-deleted": Recipe(
        [
            ("CHECKPOINT-MISSING", "checkpoint", None),
        ],
        also=set(),
        quick={"CHECKPOINT-MISSING"},
    ),
    "mixed-497-kill/last-file-empty": Recipe(
        [
            ("LOG-EMPTY-FILE", "commitlog/00000000000000262144", None),
        ],
        also=set(),
        quick={"LOG-EMPTY-FILE"},
    ),
    "mixed-550-kill/control": SOUND,
    "mixed-550-kill/body-byte": Recipe(
        [
            ("LOG-CRC", "commitlog/00000000000000262144", 9232),
        ],
        also=set(),
        quick={"LOG-CRC"},
    ),
    "mixed-550-kill/full-rebuild": Recipe(
        [
            ("CHECKPOINT-MISSING", "checkpoint", None),
            ("QUEUE-MISSING", "consumequeue", None),
            ("INDEX-MISSING", "index", None),
        ],
        also=set(),
        quick={"CHECKPOINT-MISSING", "QUEUE-MISSING", "INDEX-MISSING"},
    ),
    "many-533-clean/control": SOUND,
    "many-533-clean/control-abort": SOUND,
    "many-533-clean/full-rebuild": Recipe(
        [
            ("CHECKPOINT-MISSING", "checkpoint", None),
            ("QUEUE-MISSING", "consumequeue", None),
            ("INDEX-MISSING", "index", None),
        ],
        also=set(),
        quick={"CHECKPOINT-MISSING", "QUEUE-MISSING", "INDEX-MISSING"},
    ),
    "many-533-clean/consumequeue-deleted": Recipe(
        [
            ("QUEUE-MISSING", "consumequeue", None),
        ],
        also=set(),
        quick={"QUEUE-MISSING"},
    ),
    "many-533-clean/consumequeue-deleted-abort": Recipe(
        [
            ("QUEUE-MISSING", "consumequeue", None),
        ],
        also=set(),
        quick={"QUEUE-MISSING"},
    ),
    "many-533-clean/checkpoint-deleted-abort": Recipe(
        [
            ("CHECKPOINT-MISSING", "checkpoint", None),
        ],
        also=set(),
        quick={"CHECKPOINT-MISSING"},
    ),
    "many-533-clean/half-log-zeros-abort": Recipe(
        [
            ("LOG-TORN", "commitlog/00000000000000114688", 2583),
        ],
        also={"INDEX-BEYOND", "QUEUE-BEYOND"},
        quick={"LOG-TORN", "QUEUE-BEYOND"},
    ),
    "many-533-clean/middle-segment-missing-no-checkpoint-abort": Recipe(
        [
            ("LOG-GAP", "commitlog/00000000000000147456", 0),
            ("CHECKPOINT-MISSING", "checkpoint", None),
        ],
        also={"LOG-QUEUE-ORDER", "QUEUE-DANGLING", "INDEX-ENTRY"},
        quick={"CHECKPOINT-MISSING", "LOG-GAP"},
    ),
    "special-533-clean/control": SOUND,
    "special-533-clean/control-abort": SOUND,
    "special-533-clean/full-rebuild": Recipe(
        [
            ("CHECKPOINT-MISSING", "checkpoint", None),
            ("QUEUE-MISSING", "consumequeue", None),
            ("INDEX-MISSING", "index", None),
        ],
        also=set(),
        quick={"CHECKPOINT-MISSING", "QUEUE-MISSING", "INDEX-MISSING"},
    ),
    "special-533-clean/consumequeue-deleted": Recipe(
        [
            ("QUEUE-MISSING", "consumequeue", None),
        ],
        also=set(),
        quick={"QUEUE-MISSING"},
    ),
}
