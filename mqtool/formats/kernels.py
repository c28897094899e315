"""The loops under the scanner, one plain function each.

``compiled`` makes a second, compiled copy of this module with numba; small inputs run the functions as they are.
Either way a buffer is indexed by position and yields bytes: an array of ``u1`` for the copy, a memoryview here.
Positions of fields are arguments, since a compiled kernel keeps the constants of other modules as they once were.
No kernel reads outside its buffer whatever the bytes say; those that follow positions found by another
kernel say so.
"""

import zlib
from typing import Any

Buffer = Any
Array = Any

_AHEAD = 8
_NOT_ASCII = -0x7F7F7F7F7F7F7F80  # the top bit of each of eight bytes, as a signed number
_POWERS = tuple(31**n & 0xFFFFFFFF for n in range(9))

# Why `hop` stopped.
STOPPED_FULL = 0
STOPPED_END = 1
STOPPED_BLANK = 2
STOPPED_MAGIC = 3
STOPPED_SIZE = 4

# What `gather` thinks of a record.
SOUND = 0
BODY_SIZE = 1
TOPIC_SIZE = 2
PROPERTIES_SIZE = 3
TOTAL_SIZE = 4

# Rows of the extents that `gather` fills.
BODY = 0
TOPIC = 1
PROPERTIES = 2


def int32(buffer: Buffer, at: int) -> int:
    """Return the signed big-endian number of four bytes."""
    value: int = buffer[at] << 24 | buffer[at + 1] << 16 | buffer[at + 2] << 8 | buffer[at + 3]
    return value - ((value & 0x80000000) << 1)


def int64(buffer: Buffer, at: int) -> int:
    """Return the signed big-endian number of eight bytes."""
    return int32(buffer, at) << 32 | int32(buffer, at + 4) & 0xFFFFFFFF


def int16(buffer: Buffer, at: int) -> int:
    """Return the signed big-endian number of two bytes."""
    value: int = buffer[at] << 8 | buffer[at + 1]
    return value - ((value & 0x8000) << 1)


def int8(buffer: Buffer, at: int) -> int:
    """Return one byte as a signed number."""
    value: int = buffer[at]
    return value - ((value & 0x80) << 1)


def prefetch(_buffer: Buffer, _at: int) -> None:
    """Ask for the bytes around a position, which need not exist; compiled only."""


def hop(
    buffer: Buffer,
    start: int,
    stop: int,
    end: int,
    magics: Any,
    min_size: int,
    envelope: Any,
    starts: Array,
) -> tuple[int, int, int]:
    """Walk from record to record and note where each starts.

    Args:
        buffer: bytes of one segment.
        start: position of the first record.
        stop: no record that starts here or later is taken.
        end: no record reaches beyond this position.
        magics: of a v1 message, a v2 message, a blank record.
        min_size: of a message record.
        envelope: DLedger's: size of an entry's head and its magic code; 0, 0 for bare records.
        starts: filled with positions of records; its length is how many are taken at most.

    Returns:
        How many records were found, where the walk stopped, and why (``STOPPED_..``).
    """
    head, entry_magic = envelope
    count = 0
    at = start
    while at < stop:
        if count == len(starts):
            return count, at, STOPPED_FULL
        if at + head + 8 > end:
            return count, at, STOPPED_END
        if head and int32(buffer, at) != entry_magic:
            return count, at, STOPPED_BLANK if int32(buffer, at) == -entry_magic else STOPPED_MAGIC
        size = int32(buffer, at + head)
        magic = int32(buffer, at + head + 4)
        if magic == magics[2]:
            return count, at, STOPPED_BLANK
        if magic != magics[0] and magic != magics[1]:
            return count, at, STOPPED_MAGIC
        if size < min_size or at + head + size > end or (head and int32(buffer, at + 4) != head + size):
            return count, at, STOPPED_SIZE
        starts[count] = at + head
        count += 1
        # A walk waits for memory at every hop, and neighbours are alike: ask for where a later one may lie.
        ahead = at + _AHEAD * size
        for line in range(-2, 3):
            prefetch(buffer, ahead + line * 64)
        at += head + size
    return count, at, STOPPED_FULL


def gather(
    buffer: Buffer,
    starts: Array,
    narrow_at: Array,
    wide_at: Array,
    head_sizes: Any,
    magic_v2: int,
    at: Any,
    narrow: Array,
    wide: Array,
    extents: Array,
    faults: Array,
) -> None:
    """Read the head of each record that ``hop`` found, and where its body, topic and properties are.

    Args:
        buffer: the bytes that ``hop`` walked.
        starts: what it found.
        narrow_at: (form, column) where the four-byte fields of a head are.
        wide_at: the same of its eight-byte fields.
        head_sizes: of the four forms.
        magic_v2: of records whose topic size takes two bytes.
        at: positions of size, magic code and system flag in any head.
        narrow: (column, record) receives the four-byte fields; its last row must be the body size.
        wide: (column, record) receives the eight-byte fields.
        extents: (2 * part, record) receives the position of a part, (2 * part + 1, record) its size;
            zero from the part on whose size cannot be true.
        faults: receives ``SOUND`` or the first size that cannot be true.
    """
    size_at, magic_at, flag_at = at
    count = len(starts)
    for i in range(count):
        if i + _AHEAD < count:
            later = int(starts[i + _AHEAD])
            for line in range(-2, 2):
                prefetch(buffer, later + line * 64)
        start = int(starts[i])
        end = start + int32(buffer, start + size_at)
        form = int32(buffer, start + flag_at) >> 4 & 3
        fault = SOUND
        if start + head_sizes[form] + 3 > end:
            form = 0  # its head would be longer than the record: read what is there
            fault = TOTAL_SIZE
        for column in range(narrow_at.shape[1]):
            narrow[column, i] = int32(buffer, start + narrow_at[form, column])
        for column in range(wide_at.shape[1]):
            wide[column, i] = int64(buffer, start + wide_at[form, column])
        body_at = body_size = topic_at = topic_size = properties_at = properties_size = 0
        if fault == SOUND:
            body_at = start + head_sizes[form]
            body_size = int(narrow[narrow.shape[0] - 1, i])
            topic_at = body_at + body_size
            if body_size < 0 or topic_at + 3 > end:
                fault = BODY_SIZE
                body_at = body_size = topic_at = 0
        if fault == SOUND:
            if int32(buffer, start + magic_at) == magic_v2:
                topic_size = int16(buffer, topic_at)
                topic_at += 2
            else:
                topic_size = int8(buffer, topic_at)
                topic_at += 1
            properties_at = topic_at + topic_size + 2
            if topic_size < 0 or properties_at > end:
                fault = TOPIC_SIZE
                topic_at = topic_size = properties_at = 0
        if fault == SOUND:
            properties_size = int16(buffer, properties_at - 2)
            if properties_size < 0 or properties_at + properties_size > end:
                fault = PROPERTIES_SIZE
                properties_at = properties_size = 0
            elif properties_at + properties_size != end:
                fault = TOTAL_SIZE
        extents[2 * BODY, i] = body_at
        extents[2 * BODY + 1, i] = body_size
        extents[2 * TOPIC, i] = topic_at
        extents[2 * TOPIC + 1, i] = topic_size
        extents[2 * PROPERTIES, i] = properties_at
        extents[2 * PROPERTIES + 1, i] = properties_size
        faults[i] = fault


def equal(buffer: Buffer, at: int, other: Buffer, other_at: int, size: int) -> bool:
    """Return whether two buffers have ``size`` equal bytes."""
    k = 0
    while k + 8 <= size:
        if int64(buffer, at + k) != int64(other, other_at + k):
            return False
        k += 8
    if k + 4 <= size:
        if int32(buffer, at + k) != int32(other, other_at + k):
            return False
        k += 4
    while k < size:
        if buffer[at + k] != other[other_at + k]:
            return False
        k += 1
    return True


def _mix(buffer: Buffer, offset: int, size: int) -> int:
    """Return a number for a byte string, others for most others."""
    key = size
    at = offset
    while at + 8 <= offset + size:
        key = (key * 31 + (int64(buffer, at) & 0xFFFFFFFFFFFF)) & 0xFFFFFFFFFFFF
        at += 8
    while at < offset + size:
        key = (key * 31 + buffer[at]) & 0xFFFFFFFFFFFF
        at += 1
    return key ^ key >> 17 ^ key >> 31


def intern(buffer: Buffer, offsets: Array, sizes: Array, slots: Array, ids: Array, firsts: Array) -> int:
    """Give equal byte strings equal numbers, in order of their first appearance.

    Args:
        buffer: the bytes.
        offsets: position of each string, inside ``buffer``.
        sizes: its length.
        slots: scratch, filled with -1; its length is a power of two, more than twice the distinct strings.
        ids: receives the number of each string.
        firsts: receives for each number the row where it appears first.

    Returns:
        How many distinct strings there are; -1 when ``firsts`` is too short for them.
    """
    count = 0
    mask = len(slots) - 1
    for i in range(len(offsets)):
        if i + _AHEAD < len(offsets):
            prefetch(buffer, int(offsets[i + _AHEAD]))
        offset = int(offsets[i])
        size = int(sizes[i])
        slot = _mix(buffer, offset, size) & mask
        while True:
            number = slots[slot]
            if number < 0:
                if count == len(firsts):
                    return -1
                slots[slot] = count
                firsts[count] = i
                ids[i] = count
                count += 1
                break
            first = firsts[number]
            if sizes[first] == size and equal(buffer, offset, buffer, int(offsets[first]), size):
                ids[i] = number
                break
            slot = (slot + 1) & mask
    return count


def find_properties(
    buffer: Buffer,
    offsets: Array,
    sizes: Array,
    names: Buffer,
    name_ends: Array,
    by_letter: Array,
    found_offsets: Array,
    found_sizes: Array,
    damaged: Array,
) -> None:
    """Find the values of some properties in each properties text, the last where a name comes twice.

    ``properties.are_readable`` says in plain Python which texts are damaged.

    Args:
        buffer: the bytes.
        offsets: position of each text, inside ``buffer``.
        sizes: its length.
        names: the names to look for, end to end, in order.
        name_ends: where each name ends in ``names``.
        by_letter: (byte, 2) the numbers of the first name that starts with a byte, and of the first after those.
        found_offsets: (name, text) receives the position of the value.
        found_sizes: (name, text) receives its length; both are 0 where the property is missing or empty.
        damaged: receives whether a text is damaged.
    """
    count = len(offsets)
    for i in range(count):
        if i + _AHEAD < count:
            later = int(offsets[i + _AHEAD])
            for line in range(3):
                prefetch(buffer, later + line * 64)
        for name in range(len(name_ends)):
            found_offsets[name, i] = 0
            found_sizes[name, i] = 0
        name_at = int(offsets[i])
        end = name_at + int(sizes[i])
        value_at = -1  # behind the separator, once it is met
        has_zero = False  # in this pair
        wrong = end > name_at and buffer[end - 1] == 0
        block = name_at
        while block < end:
            marks = separators(buffer, block, end)
            while marks:
                at = block + lowest_bit(marks)
                marks &= marks - 1
                if buffer[at] == 0:
                    has_zero = True
                    continue
                if buffer[at] == 1:
                    wrong |= has_zero
                    if value_at < 0:
                        value_at = at + 1
                    continue
                if value_at <= name_at + 1:
                    wrong |= at > name_at
                elif at > value_at:
                    _note_property(
                        buffer, name_at, value_at, at, i, names, name_ends, by_letter, found_offsets, found_sizes
                    )
                name_at = at + 1
                value_at = -1
                has_zero = False
            block += 16
        if value_at <= name_at + 1:
            wrong |= end > name_at
        elif end > value_at:
            _note_property(buffer, name_at, value_at, end, i, names, name_ends, by_letter, found_offsets, found_sizes)
        damaged[i] = wrong


def _note_property(
    buffer: Buffer,
    name_at: int,
    value_at: int,
    close: int,
    row: int,
    names: Buffer,
    name_ends: Array,
    by_letter: Array,
    found_offsets: Array,
    found_sizes: Array,
) -> None:
    size = value_at - 1 - name_at
    letter = buffer[name_at]
    for name in range(by_letter[letter, 0], by_letter[letter, 1]):
        begin = name_ends[name - 1] if name else 0
        if name_ends[name] - begin == size and equal(names, begin, buffer, name_at, size):
            found_offsets[name, row] = value_at
            found_sizes[name, row] = close - value_at


def list_properties(
    buffer: Buffer,
    offsets: Array,
    sizes: Array,
    ends: Array,
    name_at: Array,
    name_sizes: Array,
    value_at: Array,
    value_sizes: Array,
) -> int:
    """List all properties of each properties text, in order; of equal names the first place and the last value.

    Args:
        buffer: the bytes.
        offsets: position of each text, inside ``buffer``.
        sizes: its length.
        ends: receives for each text how many properties it and those before it have.
        name_at: receives the position of each name.
        name_sizes: receives its length.
        value_at: receives the position of each value.
        value_sizes: receives its length.

    Returns:
        How many properties there may be at most; where they have no room nothing is sure to be written.
    """
    count = 0
    missing = 0
    for i in range(len(offsets)):
        if i + _AHEAD < len(offsets):
            later = int(offsets[i + _AHEAD])
            for line in range(3):
                prefetch(buffer, later + line * 64)
        first = count
        at = int(offsets[i])
        end = at + int(sizes[i])
        value = -1  # behind the separator, once it is met
        block = at
        while block < end:
            marks = separators(buffer, block, end)
            if block + 16 >= end and buffer[end - 1] != 2:
                marks |= 1 << end - block  # the last pair needs no separator
            while marks:
                mark = block + lowest_bit(marks)
                marks &= marks - 1
                if mark < end and buffer[mark] != 2:
                    if buffer[mark] == 1 and value < 0:
                        value = mark + 1
                    continue
                if value > at + 1 and mark > value:
                    size = value - 1 - at
                    number = first
                    while number < count and not (
                        name_sizes[number] == size and equal(buffer, int(name_at[number]), buffer, at, size)
                    ):
                        number += 1
                    if number == len(name_at):
                        missing += 1
                    else:
                        if number == count:
                            name_at[number] = at
                            name_sizes[number] = size
                            count += 1
                        value_at[number] = value
                        value_sizes[number] = mark - value
                at = mark + 1
                value = -1
            block += 16
        ends[i] = count
    return count + missing


def pack(buffer: Buffer, offsets: Array, sizes: Array, ends: Array, out: Array) -> None:
    """Copy byte strings end to end to a place.

    Args:
        buffer: the bytes.
        offsets: position of each string, inside ``buffer``.
        sizes: its length.
        ends: receives where each ends in ``out``.
        out: receives the bytes; has room for them all.
    """
    to = 0
    for i in range(len(offsets)):
        if i + _AHEAD < len(offsets):
            prefetch(buffer, int(offsets[i + _AHEAD]))
        size = int(sizes[i])
        copy(buffer, int(offsets[i]), size, out, to)
        to += size
        ends[i] = to


def copy(buffer: Buffer, at: int, size: int, out: Array, to: int) -> None:
    """Copy a range of the buffer; compiled, a loop takes its place."""
    out[to : to + size] = buffer[at : at + size]


def separators(buffer: Buffer, start: int, end: int) -> int:
    """Return which of sixteen bytes are separators of properties, or zero: bit *n* is for ``start + n``."""
    marks = 0
    for at in range(start, min(start + 16, end)):
        if buffer[at] <= 2:
            marks |= 1 << at - start
    return marks


def lowest_bit(marks: int) -> int:
    """Return the number of the lowest bit that is set."""
    number = 0
    while not marks >> number & 1:
        number += 1
    return number


def hash_of_eight(buffer: Buffer, at: int) -> int:
    """Return Java's hash of eight letters, at least its lower 32 bits: their products wait for nothing."""
    value = 0
    for letter in range(8):
        value += buffer[at + letter] * _POWERS[7 - letter]
    return value


def java_hash(buffer: Buffer, offset: int, size: int, seed: int) -> int:
    """Return Java's hash of a UTF-8 text, continued from the hash ``seed`` of what precedes it."""
    value = seed
    at = offset
    end = offset + size
    while at < end:
        if at + 8 <= end and int64(buffer, at) & _NOT_ASCII == 0:
            value = (value * _POWERS[8] + hash_of_eight(buffer, at)) & 0xFFFFFFFF
            at += 8
            continue
        first = buffer[at]
        if first < 0x80:
            value = (value * 31 + first) & 0xFFFFFFFF
            at += 1
        else:
            point, size = _letter(buffer, at, end)
            if point >= 0x10000:
                value = (value * 31 + (0xD7C0 + (point >> 10))) & 0xFFFFFFFF
                point = 0xDC00 + (point & 0x3FF)
            value = (value * 31 + point) & 0xFFFFFFFF
            at += size
    return value


def _letter(buffer: Buffer, at: int, end: int) -> tuple[int, int]:
    """Return a letter that is not ASCII, and its bytes; U+FFFD for bytes that are none, as many as Java takes."""
    first = int(buffer[at])
    if first < 0xC2 or first > 0xF4:
        return 0xFFFD, 1
    point = first & (0x1F if first < 0xE0 else 0x0F if first < 0xF0 else 0x07)
    size = 2 if first < 0xE0 else 3 if first < 0xF0 else 4
    for k in range(1, size):
        follower = int(buffer[at + k]) if at + k < end else 0
        if follower & 0xC0 != 0x80:
            return 0xFFFD, k
        point = point << 6 | follower & 0x3F
        # Too long a form of a lower letter, or beyond the last.
        if k == 1 and ((first == 0xE0 and point < 0x20) or (size == 4 and not 0x10 <= point < 0x110)):
            return 0xFFFD, 1
    return (0xFFFD if 0xD800 <= point < 0xE000 else point), size


def hashes(buffer: Buffer, offsets: Array, sizes: Array, out: Array) -> None:
    """Write the signed Java hash of each UTF-8 text; 0 for an empty one."""
    for i in range(len(offsets)):
        if i + _AHEAD < len(offsets):
            prefetch(buffer, int(offsets[i + _AHEAD]))
        value = java_hash(buffer, int(offsets[i]), int(sizes[i]), 0)
        out[i] = value - ((value & 0x80000000) << 1)


def index_hash(value: int) -> int:
    """Return the key hash of an index entry for an unsigned Java hash: its absolute value, 0 for the lowest."""
    if value >= 0x80000000:
        return (0x100000000 - value) & 0x7FFFFFFF
    return value


def key_hashes(
    buffer: Buffer,
    topics: Array,
    topic_seeds: Array,
    tag_seeds: Array,
    unique_offsets: Array,
    unique_sizes: Array,
    keys_offsets: Array,
    keys_sizes: Array,
    tag_offsets: Array,
    tag_sizes: Array,
    skip: Array,
    rows: Array,
    out: Array,
    is_tag: Array,
) -> int:
    """List the key hash of every index entry that messages need, in the order a broker writes them.

    Args:
        buffer: the bytes.
        topics: number of each message's topic.
        topic_seeds: for each topic the Java hash of ``topic#``.
        tag_seeds: for each topic the Java hash of ``topic#T#``.
        unique_offsets: position of each message's unique key.
        unique_sizes: its length, 0 for none.
        keys_offsets: position of its KEYS property.
        keys_sizes: the length of that.
        tag_offsets: position of its TAGS property.
        tag_sizes: the length of that, 0 for no entry by tag.
        skip: true for messages that are not indexed.
        rows: receives the message of each entry.
        out: receives the hash of each entry.
        is_tag: receives whether it is an entry by tag.

    Returns:
        How many entries there are; only those that have room are written.
    """
    count = 0
    for i in range(len(topics)):
        if i + _AHEAD < len(topics):
            prefetch(buffer, int(unique_offsets[i + _AHEAD]))
            prefetch(buffer, int(keys_offsets[i + _AHEAD]))
        if skip[i]:
            continue
        seed = int(topic_seeds[topics[i]])
        if unique_sizes[i] > 0:
            if count < len(out):
                rows[count] = i
                is_tag[count] = False
                out[count] = index_hash(java_hash(buffer, int(unique_offsets[i]), int(unique_sizes[i]), seed))
            count += 1
        at = int(keys_offsets[i])
        end = at + int(keys_sizes[i])
        while at < end:
            close = at
            while close < end and buffer[close] != 32:
                close += 1
            if close > at:
                if count < len(out):
                    rows[count] = i
                    is_tag[count] = False
                    out[count] = index_hash(java_hash(buffer, at, close - at, seed))
                count += 1
            at = close + 1
        if tag_sizes[i] > 0:
            if count < len(out):
                rows[count] = i
                is_tag[count] = True
                tag_seed = int(tag_seeds[topics[i]])
                out[count] = index_hash(java_hash(buffer, int(tag_offsets[i]), int(tag_sizes[i]), tag_seed))
            count += 1
    return count


def check_chains(
    entries: Buffer,
    first: int,
    stop: int,
    entry_size: int,
    hash_at: int,
    previous_at: int,
    last: Array,
    expected: Array,
    bad: Array,
) -> int:
    """Follow the entries of an index file in order and note those whose chain is not as a broker makes it.

    Args:
        entries: bytes of the entries, number 0 first.
        first: number of the first entry to look at.
        stop: one past the last.
        entry_size: bytes of an entry.
        hash_at: where its key hash is.
        previous_at: where the number of the next older entry is.
        last: for each slot the newest entry so far, 0 for none; kept up to date.
        expected: receives for each wrong entry the number that belongs into it.
        bad: receives the wrong entries.

    Returns:
        How many entries are wrong; only those that have room are written.
    """
    count = 0
    for number in range(first, stop):
        at = number * entry_size
        if number + _AHEAD < stop:
            later = int32(entries, at + _AHEAD * entry_size + hash_at)
            prefetch(last, (max(later, 0)) % len(last))
        key_hash = int32(entries, at + hash_at)
        slot = (max(key_hash, 0)) % len(last)
        if key_hash < 0 or int32(entries, at + previous_at) != last[slot]:
            if count < len(bad):
                bad[count] = number
                expected[count] = last[slot]
            count += 1
        last[slot] = number
    return count


def agree(
    entries: Buffer, first: int, entry_size: int, at: Any, hashes: Array, offsets: Array, timestamps: Array, begin: int
) -> int:
    """Return how many consecutive entries of an index file contain what is expected.

    Args:
        entries: bytes of the entries, number 0 first; as many as expected follow ``first``.
        first: number of the first entry to look at.
        entry_size: bytes of an entry.
        at: where its key hash, physical offset and seconds are.
        hashes: the key hash that each should have.
        offsets: the physical offset.
        timestamps: when its message was stored.
        begin: the begin timestamp of the file.
    """
    hash_at, offset_at, seconds_at = at
    for i in range(len(hashes)):
        place = (first + i) * entry_size
        if (
            int32(entries, place + hash_at) != hashes[i]
            or int64(entries, place + offset_at) != offsets[i]
            or int32(entries, place + seconds_at) != (int(timestamps[i]) - begin) // 1000
        ):
            return i
    return len(hashes)


def link_entries(hashes: Array, first: int, newest: Array, previous: Array) -> None:
    """Chain new entries of an index file: each follows the newest of its slot and takes its place.

    Args:
        hashes: key hash of each new entry, none negative.
        first: number of the first of them.
        newest: for each slot its newest entry, 0 for none; kept up to date.
        previous: receives the number that belongs into each new entry.
    """
    slots = len(newest)
    for i in range(len(hashes)):
        if i + _AHEAD < len(hashes):
            prefetch(newest, hashes[i + _AHEAD] % slots)
        slot = hashes[i] % slots
        previous[i] = newest[slot]
        newest[slot] = first + i


def crc32(buffer: Buffer, offset: int, size: int) -> int:
    """Return the CRC-32 of a range of the buffer; compiled, ``clmul`` takes its place."""
    return zlib.crc32(buffer[offset : offset + size])


def body_crcs(buffer: Buffer, offsets: Array, sizes: Array, out: Array) -> None:
    """Write the CRC-32 of each range of the buffer."""
    for i in range(len(offsets)):
        out[i] = crc32(buffer, int(offsets[i]), int(sizes[i]))


def fast_path(
    buffer: Buffer,
    start: int,
    stop: int,
    base: int,
    magics: Any,
    at: Any,
    no_flags: int,
    names: Any,
    with_bodies: int,
    with_tags: int,
    slots: Array,
    topics: Array,
    seeds: Array,
    narrow: Array,
    wide: Array,
    rows: Array,
    hashes: Array,
    is_tag: Array,
    unsound: Array,
) -> tuple[int, int, int, int, int]:
    """Check the most common messages, and derive what their units and index entries hold, all in one pass.

    It ends before the first record that needs a closer look: a damaged one, one whose flags or properties mean
    something here, a blank one; or before an array is full. Records that would be common but for a body that does not
    match its CRC are listed. The first of them ends the messages before it, so that these are told by themselves.

    Args:
        buffer: bytes of one segment.
        start: position of the first record.
        stop: no record that starts here or later is taken.
        base: address of the first byte of the buffer.
        magics: of a v1 message, a v2 message.
        at: positions in a head of size, magic code, body CRC, queue id, queue offset, physical offset, system flag,
            store timestamp and body size, and the size of the head.
        no_flags: bits of the system flag that ask for a closer look.
        names: of the properties that are used: eight bytes of the unique key's, four of the keys' and of the tags', as
            numbers; then the first letters of those that ask for a closer look.
        with_bodies: whether bodies are compared with their CRC.
        with_tags: whether tags have entries.
        slots: scratch, filled with -1; its length is a power of two, more than twice that of ``topics``.
        topics: (2, topic) receives position and size of each topic.
        seeds: receives for each the Java hash of ``topic#``.
        narrow: (3, message) receives size, number of the topic, queue id.
        wide: (4, message) receives position, queue offset, tags code, store timestamp.
        rows: receives the message of each entry.
        hashes: receives the key hash of each entry.
        is_tag: receives whether it is an entry by tag.
        unsound: receives the positions of records whose bodies do not match their CRC.

    Returns:
        How many messages, where the walk stopped, how many entries, how many topics, how many unsound records.
    """
    size_at, magic_at, crc_at, queue_at, offset_at, position_at, flag_at, time_at, body_size_at, head = at
    unique, keys, tags, one_letter, other_letter = names
    end = len(buffer)
    count = entries = topic_count = unsound_count = 0
    topic = -1
    position = start
    while position < stop and count < narrow.shape[1]:
        if position + head + 3 > end:
            break
        size = int32(buffer, position + size_at)
        magic = int32(buffer, position + magic_at)
        if (magic != magics[0] and magic != magics[1]) or size < head + 3 or position + size > end:
            break
        ahead = position + _AHEAD * size
        for line in range(-2, 2):
            prefetch(buffer, ahead + line * 64)
        flag = int32(buffer, position + flag_at)
        if int64(buffer, position + position_at) != base + position or flag & no_flags:
            break
        close = position + size
        body_at = position + head
        body_size = int32(buffer, position + body_size_at)
        topic_at = body_at + body_size
        if (
            body_size < 0
            or topic_at + 3 > close
            or (flag & 1 and body_size > 0 and not _is_packed(buffer, body_at, flag))
        ):
            break
        if magic == magics[1]:
            topic_size = int16(buffer, topic_at)
            topic_at += 2
        else:
            topic_size = int8(buffer, topic_at)
            topic_at += 1
        properties_at = topic_at + topic_size + 2
        if topic_size < 0 or properties_at > close or properties_at + int16(buffer, properties_at - 2) != close:
            break
        is_unsound = (
            with_bodies
            and body_size > 0
            and crc32(buffer, body_at, body_size) & 0x7FFFFFFF != int32(buffer, position + crc_at)
        )
        if is_unsound and (unsound_count == len(unsound) or (count > 0 and unsound_count == 0)):
            break
        if (
            topic < 0
            or topics[1, topic] != topic_size
            or not equal(buffer, int(topics[0, topic]), buffer, topic_at, topic_size)
        ):
            topic = _topic(buffer, topic_at, topic_size, slots, topics, seeds, topic_count)
            if topic < 0:
                break
            topic_count = max(topic_count, topic + 1)

        unique_at = unique_size = keys_at = keys_size = tags_at = tags_size = 0
        is_special = False
        name_at = block = properties_at
        value_at = -1
        while block < close:
            marks = separators(buffer, block, close)
            if block + 16 >= close and buffer[close - 1] != 2:
                marks |= 1 << close - block  # the last pair needs no separator
            while marks:
                mark = block + lowest_bit(marks)
                marks &= marks - 1
                if mark < close and buffer[mark] != 2:
                    if buffer[mark] == 0:
                        is_special = True
                    elif value_at < 0:
                        value_at = mark + 1
                    continue
                name_size = value_at - 1 - name_at
                if name_size <= 0:
                    is_special |= mark > name_at
                elif mark > value_at:
                    letter = buffer[name_at]
                    if name_size == 8 and int64(buffer, name_at) == unique:
                        unique_at, unique_size = value_at, mark - value_at
                    elif name_size == 4 and int32(buffer, name_at) == keys:
                        keys_at, keys_size = value_at, mark - value_at
                    elif name_size == 4 and int32(buffer, name_at) == tags:
                        tags_at, tags_size = value_at, mark - value_at
                    elif letter in (one_letter, other_letter):
                        is_special = True
                name_at = mark + 1
                value_at = -1
            block += 16
        if is_special:
            break
        if is_unsound:
            unsound[unsound_count] = position
            unsound_count += 1
            position = close
            continue

        seed = int(seeds[topic])
        next_entry = entries
        if unique_size > 0:
            if next_entry == len(rows):
                break
            rows[next_entry] = count
            is_tag[next_entry] = False
            hashes[next_entry] = index_hash(java_hash(buffer, unique_at, unique_size, seed))
            next_entry += 1
        key_at = keys_at
        is_full = False
        while key_at < keys_at + keys_size:
            key_end = key_at
            while key_end < keys_at + keys_size and buffer[key_end] != 32:
                key_end += 1
            if key_end > key_at:
                if next_entry == len(rows):
                    is_full = True
                    break
                rows[next_entry] = count
                is_tag[next_entry] = False
                hashes[next_entry] = index_hash(java_hash(buffer, key_at, key_end - key_at, seed))
                next_entry += 1
            key_at = key_end + 1
        if is_full or (with_tags and tags_size > 0 and next_entry == len(rows)):
            break
        if with_tags and tags_size > 0:
            rows[next_entry] = count
            is_tag[next_entry] = True
            tag_seed = ((seed * 31 + 84) * 31 + 35) & 0xFFFFFFFF  # ``T#``
            hashes[next_entry] = index_hash(java_hash(buffer, tags_at, tags_size, tag_seed))
            next_entry += 1
        entries = next_entry
        code = java_hash(buffer, tags_at, tags_size, 0)

        narrow[0, count] = size
        narrow[1, count] = topic
        narrow[2, count] = int32(buffer, position + queue_at)
        wide[0, count] = position
        wide[1, count] = int64(buffer, position + offset_at)
        wide[2, count] = code - ((code & 0x80000000) << 1)
        wide[3, count] = int64(buffer, position + time_at)
        count += 1
        position = close
    return count, position, entries, topic_count, unsound_count


def _is_packed(buffer: Buffer, body_at: int, flag: int) -> bool:
    """Return whether a body starts as the compression in its system flag does: LZ4 (1), zstd (2) or zlib (0, 3)."""
    head = int32(buffer, body_at) & 0xFFFFFFFF
    kind = flag >> 8 & 7
    if kind == 1:
        return head == 0x04224D18
    if kind == 2:
        return head == 0x28B52FFD
    return (kind == 0 or kind == 3) and head >> 24 & 15 == 8 and (head >> 16) % 31 == 0


def _topic(
    buffer: Buffer, topic_at: int, topic_size: int, slots: Array, topics: Array, seeds: Array, topic_count: int
) -> int:
    """Return the number of a topic, the next for a new one; -1 if there is no room for it."""
    mask = len(slots) - 1
    slot = _mix(buffer, topic_at, topic_size) & mask
    while slots[slot] >= 0:
        number = int(slots[slot])
        if topics[1, number] == topic_size and equal(buffer, int(topics[0, number]), buffer, topic_at, topic_size):
            return number
        slot = (slot + 1) & mask
    if topic_count == len(seeds):
        return -1
    slots[slot] = topic_count
    topics[0, topic_count] = topic_at
    topics[1, topic_count] = topic_size
    seeds[topic_count] = (java_hash(buffer, topic_at, topic_size, 0) * 31 + 35) & 0xFFFFFFFF  # ``#``
    return topic_count
