"""Replication streams recorded between real masters and slaves: ``fixtures/replication``."""

import base64
import lzma
from dataclasses import dataclass
from pathlib import Path

import orjson

FOLDER = Path(__file__).parent.parent / "fixtures" / "replication"
STREAMS = sorted(path.name.removesuffix(".jsonl.xz") for path in FOLDER.glob("*.jsonl.xz"))


@dataclass(frozen=True)
class RecordedBytes:
    """A report or a frame as it was on the wire."""

    time: int  # ms
    is_report: bool
    offset: int
    body: bytes
    wire: bytes


def recorded(name: str) -> list[RecordedBytes]:
    """Return what a stream consists of, in order of arrival at the recorder."""
    found = []
    for line in lzma.decompress((FOLDER / f"{name}.jsonl.xz").read_bytes()).splitlines():
        fields = orjson.loads(line)
        if fields.get("dir") == ">":
            found.append(RecordedBytes(fields["t"], True, fields["report"], b"", bytes.fromhex(fields["hex"])))
        elif fields.get("dir") == "<":
            body = base64.b64decode(fields["body"])
            wire = bytes.fromhex(fields["header"]) + body
            found.append(RecordedBytes(fields["t"], False, fields["offset"], body, wire))
    return found
