"""What clients tell of a message on its way."""

from mqtool.formats.trace import TraceRecord, parse_trace


def test_a_recall_is_read_as_java_writes_it() -> None:
    body = b"Recall\x011700000000000\x01DefaultRegion\x01P\x01Orders\x017F0001\x01true\x02"

    assert parse_trace(body) == [
        TraceRecord("Recall", 1_700_000_000_000, "P", "Orders", "7F0001", "", "", None, True, "")
    ]
