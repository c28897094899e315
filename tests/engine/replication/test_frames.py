"""Both directions of the replication stream, cut anywhere."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtool.engine.replication.frames import (
    MAX_BODY,
    Frame,
    FrameHead,
    FrameParser,
    ReportParser,
    build_frame_head,
    build_report,
    other_protocol,
)
from mqtool.errors import FormatError
from mqtool.formats.replication import FRAME_HEAD, REPORT
from tests.recorded_replication import STREAMS, recorded

offsets = st.integers(0, (1 << 56) - 1)


def pieces_of(data: bytes, cuts: list[int]) -> list[bytes]:
    bounds = [0, *sorted({cut % (len(data) + 1) for cut in cuts}), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(bounds)]


@pytest.mark.parametrize("name", STREAMS)
@given(cuts=st.lists(st.integers(0, 1 << 20), max_size=8))
def test_what_real_brokers_sent_is_read_however_it_is_cut(name: str, cuts: list[int]) -> None:
    stream = recorded(name)
    assert any(one.is_report for one in stream)
    reports, frames = ReportParser(), FrameParser()
    got_reports: list[int] = []
    got_frames: list[FrameHead | Frame] = []

    for piece in pieces_of(b"".join(one.wire for one in stream if not one.is_report), cuts):
        frames.receive(piece)
        got_frames += frames.commands()
    for report in (one for one in stream if one.is_report):
        for piece in pieces_of(report.wire, cuts):
            reports.receive(piece)
            got_reports += reports.commands()

    assert got_reports == [one.offset for one in stream if one.is_report]
    assert got_frames == list(
        itertools.chain.from_iterable(
            (FrameHead(one.offset, len(one.body)), Frame(one.offset, one.body)) for one in stream if not one.is_report
        )
    )
    assert reports.pending_size == frames.pending_size == 0


@pytest.mark.parametrize("name", STREAMS)
def test_what_is_built_is_what_real_brokers_sent(name: str) -> None:
    for one in recorded(name):
        if one.is_report:
            assert build_report(one.offset) == one.wire == REPORT.schema.build({"max_offset": one.offset})
        else:
            head = FRAME_HEAD.schema.build({"physical_offset": one.offset, "size": len(one.body)})
            assert build_frame_head(one.offset, len(one.body)) + one.body == one.wire == head + one.body


@given(
    frames=st.lists(st.tuples(offsets, st.binary(max_size=40)), max_size=6),
    cuts=st.lists(st.integers(0, 400), max_size=12),
)
def test_a_head_is_known_before_its_body_has_come(frames: list[tuple[int, bytes]], cuts: list[int]) -> None:
    data = b"".join(build_frame_head(offset, len(body)) + body for offset, body in frames)
    parser, come = FrameParser(), 0
    heads: list[FrameHead] = []
    bodies: list[Frame] = []
    ends = list(itertools.accumulate(12 + len(body) for _, body in frames))
    head_ends = [end - len(body) for end, (_, body) in zip(ends, frames, strict=True)]

    for piece in pieces_of(data, cuts):
        parser.receive(piece)
        come += len(piece)
        for one in parser.commands():
            if isinstance(one, FrameHead):
                heads.append(one)
            else:
                bodies.append(one)
        assert len(heads) == sum(end <= come for end in head_ends)
        assert len(bodies) == sum(end <= come for end in ends)

    assert bodies == [Frame(*one) for one in frames]


@given(
    given_reports=st.lists(offsets, min_size=1, max_size=12).filter(lambda one: one[0] >> 32 != 1),
    cuts=st.lists(st.integers(0, 100), max_size=6),
)
def test_of_reports_that_arrive_together_the_last_counts(given_reports: list[int], cuts: list[int]) -> None:
    parser, come, seen = ReportParser(), 0, 0
    for piece in pieces_of(b"".join(map(build_report, given_reports)), cuts):
        parser.receive(piece)
        come += len(piece)
        whole = come // 8
        assert list(parser.commands()) == ([given_reports[whole - 1]] if whole > seen else [])
        seen = whole
    assert parser.pending_size == 0


@pytest.mark.parametrize(("offset", "size"), [(0, -1), (-1, 0), (0, MAX_BODY + 1), (1 << 56, 0), (0, -(1 << 31))])
def test_a_head_that_no_frame_has_is_refused(offset: int, size: int) -> None:
    parser = FrameParser()
    parser.receive(build_frame_head(10, 2) + b"ab" + build_frame_head(offset, size))
    got: list[FrameHead | Frame] = []

    with pytest.raises(FormatError, match=r"a frame of .* bytes for"):
        got.extend(parser.commands())

    assert got == [FrameHead(10, 2), Frame(10, b"ab")]


@pytest.mark.parametrize("report", [-1, -(1 << 63), 1 << 56, (1 << 63) - 1])
def test_what_is_no_offset_is_no_report(report: int) -> None:
    parser = ReportParser()
    parser.receive(build_report(report))

    with pytest.raises(FormatError, match="is not an offset of a log"):
        list(parser.commands())


@pytest.mark.parametrize("flags", [0, 1, 1 << 16, 1 << 16 | 1])
@pytest.mark.parametrize("cut", range(1, 17))
def test_an_auto_switch_slave_is_told_from_one_at_that_offset(flags: int, cut: int) -> None:
    handshake = build_report(1 << 32 | flags) + build_report(2)  # and the id of its broker
    parser = ReportParser()

    def feed(data: bytes) -> list[int]:
        parser.receive(data)
        return list(parser.commands())

    with pytest.raises(FormatError, match="auto-switch"):
        feed(handshake[:cut])
        feed(handshake[cut:])

    parser = ReportParser()
    assert feed(build_report(1 << 32 | flags)) == [1 << 32 | flags]
    assert feed(build_report((1 << 32 | flags) + 100)) == [(1 << 32 | flags) + 100]
    assert feed(build_report(7)) == [7]  # later it may be as low as it likes


@pytest.mark.parametrize(
    ("data", "protocol"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "HTTP"),
        (bytes.fromhex("160301020001000102"), "TLS"),
        (bytes.fromhex("0000006a00000066") + b'{"code":34,', "remoting"),
        (build_report(1 << 32) + build_report(1), "auto-switch"),
    ],
)
def test_others_are_known_by_how_they_begin(data: bytes, protocol: str) -> None:
    parser = ReportParser()
    parser.receive(data)

    with pytest.raises(FormatError):
        list(parser.commands())

    assert protocol in (other_protocol(parser.pending) or "")
    assert other_protocol(b"") is None
