"""Recorded traffic of real clients, brokers and name servers: ``fixtures/traces``."""

import base64
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from mqtool.formats.codes import RequestCode
from mqtool.formats.remoting import RemotingCommand
from tests.frames import parse_frame

FOLDER = Path(__file__).parent.parent / "fixtures" / "traces"
TRACES = sorted(path.stem for path in FOLDER.glob("*.jsonl"))


@dataclass(frozen=True)
class Recorded:
    """One frame as it was on the wire."""

    direction: str  # > to the server, < to the client
    server: str  # ns or broker
    connection: int
    fields: dict[str, Any]  # what the recorder read in the header
    body: bytes

    @property
    def frame(self) -> bytes:
        """The bytes of the frame."""
        header: bytes = self.fields["header"].encode()
        serialize_type = self.fields["serializeType"]
        length = 4 + len(header) + len(self.body)
        return struct.pack(">iI", length, serialize_type << 24 | len(header)) + header + self.body

    @property
    def command(self) -> RemotingCommand:
        """The command that the frame holds."""
        return parse_frame(self.frame)


@dataclass(frozen=True)
class Exchange:
    """A request and its answer; None where there is none."""

    request: Recorded
    answer: Recorded | None

    @property
    def code(self) -> int:
        """What the request asks for."""
        return int(self.request.fields["code"])


def recorded(name: str) -> Iterator[Recorded]:
    """Yield the frames of a trace; those whose body the recorder cut are left out."""
    for line in (FOLDER / f"{name}.jsonl").read_bytes().splitlines():
        fields = orjson.loads(line)
        if "event" in fields:
            continue
        body = base64.b64decode(fields.get("body") or "")
        if len(body) == fields["bodyLength"]:
            yield Recorded(fields["dir"], fields["to"], fields["conn"], fields, body)


def exchanges(name: str, *codes: RequestCode) -> list[Exchange]:
    """Return the requests of these codes, of all without any, each with its answer."""
    found = []
    frames = [*recorded(name)]
    for at, request in enumerate(frames):
        if request.fields["flag"] & 1 or (codes and request.fields["code"] not in codes):
            continue
        key = request.connection, request.fields["opaque"]
        answers = (
            frame
            for frame in frames[at:]
            if frame.fields["flag"] & 1
            and (frame.connection, frame.fields["opaque"]) == key
            and frame.direction != request.direction
        )
        found.append(Exchange(request, next(answers, None)))
    return found
