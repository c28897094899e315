"""The table of checks: for each code its severity and the page that ``explain`` shows."""

import dataclasses
from typing import Any

from mqtool.engine.repair.findings import Finding, Severity

ERROR, WARNING, NOTE = Severity.ERROR, Severity.WARNING, Severity.NOTE


@dataclasses.dataclass(frozen=True)
class Check:
    """What one code stands for."""

    severity: Severity
    title: str
    cause: str
    remedy: str


def finding(code: str, message: str, **facts: Any) -> Finding:
    """Return a finding of the check with this code."""
    return Finding(code, CHECKS[code].severity, message, **facts)


CHECKS: dict[str, Check] = {
    "LOG-MISSING": Check(ERROR, "", "", ""),
    "LOG-START": Check(NOTE, "", "", ""),
    "LOG-STRAY": Check(WARNING, "", "", ""),
    "LOG-EMPTY-FILE": Check(WARNING, "", "", ""),
    "LOG-FILE-SIZE": Check(ERROR, "", "", ""),
    "LOG-NAME": Check(ERROR, "", "", ""),
    "LOG-GAP": Check(ERROR, "", "", ""),
    "LOG-MAGIC": Check(ERROR, "", "", ""),
    "LOG-SIZES": Check(ERROR, "", "", ""),
    "LOG-BLANK": Check(ERROR, "", "", ""),
    "LOG-CRC": Check(ERROR, "", "", ""),
    "LOG-PROPERTY-CRC": Check(ERROR, "", "", ""),
    "LOG-POSITION": Check(ERROR, "", "", ""),
    "LOG-PROPERTIES": Check(ERROR, "", "", ""),
    "LOG-FLAG": Check(WARNING, "", "", ""),
    "LOG-ENTRY": Check(ERROR, "", "", ""),
    "LOG-QUEUE-ORDER": Check(ERROR, "", "", ""),
    "LOG-TIME-ORDER": Check(WARNING, "", "", ""),
    "LOG-TORN": Check(ERROR, "", "", ""),
    "LOG-STALE": Check(WARNING, "", "", ""),
    "LOG-NOISE": Check(WARNING, "", "", ""),
    "QUEUE-STRAY": Check(WARNING, "", "", ""),
    "QUEUE-FILE-SIZE": Check(WARNING, "", "", ""),
    "QUEUE-NAME": Check(WARNING, "", "", ""),
    "QUEUE-GAP": Check(WARNING, "", "", ""),
    "QUEUE-MISSING": Check(WARNING, "", "", ""),
    "QUEUE-POSITION": Check(WARNING, "", "", ""),
    "QUEUE-LENGTH": Check(WARNING, "", "", ""),
    "QUEUE-TAGS": Check(WARNING, "", "", ""),
    "QUEUE-TIME": Check(WARNING, "", "", ""),
    "QUEUE-BATCH": Check(WARNING, "", "", ""),
    "QUEUE-EXT": Check(WARNING, "", "", ""),
    "QUEUE-TORN": Check(WARNING, "", "", ""),
    "QUEUE-BEYOND": Check(ERROR, "", "", ""),
    "QUEUE-DANGLING": Check(ERROR, "", "", ""),
    "QUEUE-ROCKSDB-DAMAGED": Check(WARNING, "", "", ""),
    "QUEUE-ROCKSDB": Check(NOTE, "", "", ""),
    "INDEX-STRAY": Check(NOTE, "", "", ""),
    "INDEX-FILE-SIZE": Check(WARNING, "", "", ""),
    "INDEX-SHAPE": Check(WARNING, "", "", ""),
    "INDEX-HEADER": Check(WARNING, "", "", ""),
    "INDEX-CHAIN": Check(WARNING, "", "", ""),
    "INDEX-SLOT": Check(WARNING, "", "", ""),
    "INDEX-ENTRY": Check(WARNING, "", "", ""),
    "INDEX-TIME": Check(WARNING, "", "", ""),
    "INDEX-MISSING": Check(WARNING, "", "", ""),
    "INDEX-DUPLICATE": Check(NOTE, "", "", ""),
    "INDEX-BEYOND": Check(WARNING, "", "", ""),
    "CHECKPOINT-MISSING": Check(WARNING, "", "", ""),
    "CHECKPOINT-SIZE": Check(WARNING, "", "", ""),
    "CHECKPOINT-ZERO": Check(NOTE, "", "", ""),
    "CHECKPOINT-AHEAD": Check(WARNING, "", "", ""),
    "CHECKPOINT-REST": Check(NOTE, "", "", ""),
    "ABORT-FILE": Check(NOTE, "", "", ""),
    "STORE-LIVE": Check(NOTE, "", "", ""),
    "TIMER-MISSING": Check(WARNING, "", "", ""),
    "TIMER-FILE-SIZE": Check(WARNING, "", "", ""),
    "TIMER-UNIT": Check(WARNING, "", "", ""),
    "TIMER-CHAIN": Check(WARNING, "", "", ""),
    "TIMER-SLOT": Check(WARNING, "", "", ""),
    "TIMER-MESSAGE": Check(WARNING, "", "", ""),
    "TIMER-CHECK": Check(WARNING, "", "", ""),
    "CONFIG-UNREADABLE": Check(ERROR, "", "", ""),
    "CONFIG-FROM-BACKUP": Check(WARNING, "", "", ""),
    "CONFIG-BACKUP": Check(NOTE, "", "", ""),
    "CONFIG-ROCKSDB": Check(NOTE, "", "", ""),
    "CONFIG-MISSING": Check(NOTE, "", "", ""),
    "CONFIG-NO-TOPIC": Check(WARNING, "", "", ""),
    "CONFIG-NO-QUEUE": Check(NOTE, "", "", ""),
    "CONFIG-QUEUE-COUNT": Check(WARNING, "", "", ""),
    "CONFIG-NO-GROUP": Check(NOTE, "", "", ""),
    "CONFIG-OFFSET": Check(WARNING, "", "", ""),
    "CONFIG-OFFSET-EXPIRED": Check(NOTE, "", "", ""),
    "CONFIG-DELAY-OFFSET": Check(WARNING, "", "", ""),
}
