"""The records that stand where nothing is known to have been."""

import sys
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from mqtool.formats import placeholder
from mqtool.formats.inner_batch import count_elements, is_inner_batch
from mqtool.formats.message import message_of
from mqtool.formats.placeholder import RecordTemplate
from mqtool.formats.properties import CRC_SIZE

WITH_CRC = RecordTemplate(0, 0, bytes(4), 0, 0, bytes(4), 0, has_crc=True)
OF_IPV6 = RecordTemplate(0x10, 0, bytes(16), 0, 0, bytes(4), 0, has_crc=True)


@pytest.mark.parametrize("like", [WITH_CRC, OF_IPV6], ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("more", [0, 1, 8, 9, 11, 12, 31, 32, 200])
def test_a_filler_that_has_room_for_a_crc_property_ends_in_one(more: int, like: RecordTemplate) -> None:
    size = 91 + CRC_SIZE + more  # a record without anything takes 91 bytes

    record = placeholder.filler(size, 4096, "gone", like)

    assert len(record) == size
    digits = str(zlib.crc32(record[:-CRC_SIZE]) & 0x7FFFFFFF).zfill(10)[::-1]  # as RocketMQ writes them
    assert record[-CRC_SIZE:] == f"__CRC32#\x01{digits}\x02".encode()


@pytest.mark.parametrize("like", [WITH_CRC, OF_IPV6], ids=["IPv4", "IPv6"])
@pytest.mark.parametrize("more", range(80))
def test_a_placeholder_of_any_size_that_a_record_can_have_keeps_its_place_in_its_queue(
    more: int, like: RecordTemplate
) -> None:
    properties = placeholder.needed("SCHEDULE_TOPIC_XXXX", 1, 7)
    size = 91 + len("SCHEDULE_TOPIC_XXXX") + more

    record = placeholder.build(size, 4096, b"SCHEDULE_TOPIC_XXXX", 1, 7, "gone", like, 0, properties)

    message = message_of(record, 4096)
    assert (message.size, message.topic, message.queue_id, message.queue_offset) == (size, "SCHEDULE_TOPIC_XXXX", 1, 7)
    assert message.body_crc == zlib.crc32(message.body) & 0x7FFFFFFF
    assert ("__CRC32#" in message.properties) == (more >= CRC_SIZE)


@pytest.mark.parametrize("more", range(0, 1200, 37))
def test_what_was_lost_is_told_in_what_the_messages_of_a_batch_leave(more: int) -> None:
    properties = placeholder.needed("Inner", 0, 0, 4)
    size = placeholder.min_size(b"Inner", placeholder.PLAIN) + len(properties) + 4 * placeholder.ELEMENT_SIZE + more

    record = placeholder.build(size, 0, b"Inner", 0, 0, "why " * 200, placeholder.PLAIN, 0, properties, 4)

    message = message_of(record, 0)
    assert len(record) == size
    assert is_inner_batch(message)
    assert count_elements(message.body) == 4
    assert placeholder.LOST in message.properties


def test_threads_may_ask_for_crcs_at_once() -> None:
    sizes = [np.arange(1, stop, dtype=np.int64) for stop in range(2, 400, 3)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(5):
            crcs = placeholder._ZeroCrcs()
            with ThreadPoolExecutor(8) as pool:
                for some, found in zip(sizes, pool.map(crcs.of, sizes), strict=True):
                    assert found.tolist() == [zlib.crc32(bytes(size)) & 0x7FFFFFFF for size in some.tolist()]
    finally:
        sys.setswitchinterval(before)
