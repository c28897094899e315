"""Message properties: names and values as separated text, and the dict that is a view of it.

A record keeps the raw bytes: brokers differ in order and in whether a separator ends the text.
(RocketMQ: ``MessageDecoder.string2messageProperties``.)
"""

NAME_SEPARATOR = "\x01"
PAIR_SEPARATOR = "\x02"
KEY_SEPARATOR = " "

CRC_NAME = "__CRC32#"
CRC_SIZE = len(CRC_NAME) + len(NAME_SEPARATOR) + 10 + len(PAIR_SEPARATOR)


def parse_properties(data: bytes) -> dict[str, str]:
    r"""Return name to value; pairs that Java's reader drops are dropped, the last of equal names wins.

    >>> parse_properties(b"TAGS\\x01TagA\\x02KEYS\\x01k1 k2\\x02")
    {'TAGS': 'TagA', 'KEYS': 'k1 k2'}
    """
    pairs = {}
    for chunk in data.decode("utf-8", "replace").split(PAIR_SEPARATOR):
        name, _, value = chunk.partition(NAME_SEPARATOR)
        if name and value:
            pairs[name] = value
    return pairs


def build_properties(pairs: dict[str, str]) -> bytes:
    """Return the text as RocketMQ 5.2 and later writes it, each pair ended by a separator."""
    return "".join(f"{name}{NAME_SEPARATOR}{value}{PAIR_SEPARATOR}" for name, value in pairs.items()).encode()


def split_keys(keys: str) -> list[str]:
    """Return the single keys of a KEYS property, in order."""
    return [key for key in keys.split(KEY_SEPARATOR) if key]


def crc_digits(crc: int) -> bytes:
    """Return the ten digits of a CRC property, the least significant first.

    >>> crc_digits(254456178)
    b'8716544520'
    """
    return f"{crc:010}"[::-1].encode()
