"""The rules of a mirror: its map of offsets beside a plain dict, its queues, and the way that a message carries."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtool.engine.client.mirroring import (
    HOPS,
    RESENT,
    Hop,
    MirroredMessage,
    OffsetMap,
    check_cluster_name,
    clusters_of,
    in_requests,
    last_hop,
    pack_copies,
    target_queue,
)
from mqtool.errors import UsageError
from mqtool.formats.bodies import MessageQueue
from mqtool.formats.new_message import NewMessage, split_batch
from mqtool.formats.properties import parse_properties


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3)), max_size=40), st.integers(0, 130))
def test_a_map_of_offsets_tells_what_a_dict_of_all_copies_does(steps: list[tuple[int, int]], offset: int) -> None:
    offsets, known = OffsetMap(), {}
    origin = target = 0
    for step, target_step in steps:
        origin, target = origin + step, target + target_step
        offsets.add(origin, target)
        known[origin] = target

    before = [known[one] for one in known if one < offset]
    assert offsets.behind(offset) == (max(before) + 1 if before else None)


def queues(counts: dict[str, int]) -> list[MessageQueue]:
    return [MessageQueue("T", name, queue_id) for name, count in counts.items() for queue_id in range(count)]


def test_as_many_queues_keep_their_ids_and_fewer_are_counted_from_the_first_again() -> None:
    source = queues({"a": 4, "b": 4})
    same = [target_queue(one, ["b", "a"], queues({"y": 4, "x": 4})) for one in source]
    fewer = {target_queue(one, ["a", "b"], queues({"x": 3})) for one in source}

    assert [(one.broker_name, one.queue_id) for one in same] == [(name, n) for name in "xy" for n in range(4)]
    assert fewer == set(queues({"x": 3}))


def test_the_way_of_a_message_is_read_as_it_was_written() -> None:
    way = "A:broker:1:Orders:3:17:5 B:b:Orders:0:2:9"

    assert last_hop({HOPS: way}) == Hop("B", "b", "Orders", 0, 2, 9)
    assert last_hop({HOPS: way.split(" ")[0]}) == Hop("A", "broker:1", "Orders", 3, 17, 5)
    assert clusters_of({HOPS: f"{way} {RESENT}"}) == {"A", "B"}
    for text in (f"{way} {RESENT}", "nonsense", "A:b:c:d:e:f", ""):
        assert last_hop({HOPS: text}) is None
    assert clusters_of({}) == set()


@given(
    st.lists(
        st.builds(
            MirroredMessage,
            st.integers(0, 99),
            st.integers(1, 3),
            st.integers(0, 9),
            st.sampled_from([0, 1]),
            st.binary(min_size=1, max_size=400_000),
            st.dictionaries(st.sampled_from(["TAGS", "UNIQ_KEY", "own"]), st.text("abc", min_size=1)),
        ),
        max_size=12,
    )
)
def test_requests_hold_all_copies_in_order_with_their_own_times_and_keys(copies: list[MirroredMessage]) -> None:
    found = []
    for batch in in_requests(copies):
        packed, born = pack_copies(batch, "T")
        if packed.is_batch:
            elements = split_batch(NewMessage("T", 0, packed.body, packed.properties.encode()))
            rows = [(one.flag, one.body, one.properties) for one in elements]
        else:
            rows = [(packed.flag, packed.body, packed.properties.encode())]
        for flag, body, text in rows:
            properties = parse_properties(text)
            assert properties.pop("WAIT") == "true"
            time = int(properties.pop("BORN_TIMESTAMP", born))
            found.append((time, flag, packed.sys_flag, body, properties))
    assert found == [tuple(one)[1:] for one in copies]


@pytest.mark.parametrize("name", ["", "a b", "a:b", "ä", "%"])
def test_names_that_copies_cannot_carry_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="--from-name"):
        check_cluster_name(name)
