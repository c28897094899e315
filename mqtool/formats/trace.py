"""What clients report about a message on its way: records that they send to a trace topic, as separated text.

A body holds many records; each ends with character 2, its fields are separated by character 1. The keys of the
message that carries them are the unique keys and keys of the messages that they describe.
(RocketMQ: ``TraceDataEncoder``.)
"""

from typing import NamedTuple

_FIELD, _RECORD = "\x01", "\x02"


class TraceRecord(NamedTuple):
    """One record; what its kind does not contain is empty, or None."""

    kind: str  # Pub, SubBefore, SubAfter, EndTransaction, Recall
    timestamp: int | None
    group: str
    topic: str
    unique_key: str
    request_id: str  # joins SubBefore and SubAfter
    client_host: str
    cost_ms: int | None
    is_success: bool | None
    state: str  # how a transaction ended


def parse_trace(body: bytes) -> list[TraceRecord]:
    r"""Return the records of a body; unknown records are left out.

    >>> parse_trace(b"SubAfter\x01r1\x01KEY\x015\x01true\x01k\x010\x02")[0][4:9]
    ('KEY', 'r1', '', 5, True)
    """
    records = []
    for text in body.decode("utf-8", "replace").split(_RECORD):
        fields = text.strip().split(_FIELD)
        read = _READERS.get(fields[0])
        if read:
            records.append(read(_Fields(fields)))
    return records


class _Fields:
    """The fields of a record by their places; one that is missing is empty."""

    def __init__(self, fields: list[str]) -> None:
        self.count = len(fields)
        self._fields = fields

    def text(self, place: int) -> str:
        """Return a field as it is; Java writes what there is not as ``null``."""
        value = self._fields[place] if place < self.count else ""
        return "" if value == "null" else value

    def number(self, place: int) -> int | None:
        """Return a field that is a number."""
        value = self.text(place)
        return int(value) if value.isascii() and value.isdigit() and len(value) < 19 else None


def _sent(of: _Fields) -> TraceRecord:
    # Old clients tell no offset message id, new ones add their host behind the success.
    success = of.text(12 if of.count == 13 else 13)
    return TraceRecord(
        of.text(0), of.number(1), of.text(3), of.text(4), of.text(5), "", of.text(14), of.number(10),
        success == "true" if success else None, "",
    )  # fmt: skip


def _given(of: _Fields) -> TraceRecord:
    return TraceRecord(
        of.text(0), of.number(1), of.text(3), "", of.text(5), of.text(4), of.text(8), None, None, ""
    )  # fmt: skip


def _consumed(of: _Fields) -> TraceRecord:
    success = of.text(4)
    return TraceRecord(
        of.text(0), of.number(7), of.text(8), "", of.text(2), of.text(1), "", of.number(3),
        success == "true" if success else None, "",
    )  # fmt: skip


def _ended(of: _Fields) -> TraceRecord:
    return TraceRecord(
        of.text(0), of.number(1), of.text(3), of.text(4), of.text(5), "", "", None, None, of.text(11)
    )  # fmt: skip


def _recalled(of: _Fields) -> TraceRecord:
    success = of.text(6)
    return TraceRecord(
        of.text(0), of.number(1), of.text(3), of.text(4), of.text(5), "", "", None,
        success == "true" if success else None, "",
    )  # fmt: skip


_READERS = {
    "Pub": _sent,
    "SubBefore": _given,
    "SubAfter": _consumed,
    "EndTransaction": _ended,
    "Recall": _recalled,
}


def build_sent(
    timestamp: int,
    region: str,
    group: str,
    topic: str,
    unique_key: str,
    tags: str,
    keys: str,
    store_host: str,
    body_size: int,
    cost_ms: int,
    kind: int,
    offset_message_id: str,
    is_success: bool,
) -> str:
    """Return the record of a message that was sent; ``kind``: 3 of delayed ones, 0 of others."""
    fields = (
        "Pub", timestamp, region, group, topic, unique_key, tags, keys, store_host, body_size, cost_ms, kind,
        offset_message_id, _truth(is_success),
    )  # fmt: skip
    return _record(fields)


def build_given(
    timestamp: int, region: str, group: str, request_id: str, unique_key: str, times: int, keys: str
) -> str:
    r"""Return the record of a message that a listener gets.

    Java cannot read one that ends with an empty field, nor any other of the same body: without keys it writes ``null``.

    >>> build_given(1, "r", "G", "id", "KEY", 0, "")
    'SubBefore\x011\x01r\x01G\x01id\x01KEY\x010\x01null\x02'
    """
    return _record(("SubBefore", timestamp, region, group, request_id, unique_key, times, keys or "null"))


def build_consumed(
    request_id: str,
    unique_key: str,
    cost_ms: int,
    is_success: bool,
    keys: str,
    outcome: int,
    timestamp: int,
    group: str,
) -> str:
    """Return the record of what became of it; ``outcome``: 0 success, 2 exception, 4 to be consumed later."""
    fields = ("SubAfter", request_id, unique_key, cost_ms, _truth(is_success), keys, outcome, timestamp, group)
    return _record(fields)


def _record(fields: tuple[object, ...]) -> str:
    return _FIELD.join(map(str, fields)) + _RECORD


def _truth(value: bool) -> str:
    return "true" if value else "false"
