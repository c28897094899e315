"""The page ``docs/reports/damaged.md``: what brokers keep of each damaged store, and what ``recover`` keeps.

``python -m tests.engine.repair.verdict_table > docs/reports/damaged.md`` makes it again.

What a broker keeps is counted in the queues that ``recover --as-broker`` says it has once it is up. The recorded
verdict has minimum, maximum and a digest of all units of each, and so tells whether they are the broker's own.
"""

import contextlib
import sys
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from mqtool.engine.repair.broker_files import RefusedError
from mqtool.engine.repair.broker_start import BrokerStart
from mqtool.engine.repair.plan import carry_out, plan_mend
from mqtool.engine.store.disk import Disk
from mqtool.engine.store.reader import StoreReader
from mqtool.formats import commit_log
from mqtool.formats.message import Message
from tests.damage import Case, cases
from tests.engine.repair.recorded import VERSIONS, config_of, index_names, seen, states_of, without_chance

Unit = tuple[str, int, int, int, int]
"""Topic, queue, queue offset, physical offset, size."""

_IN_QUEUES = (0, commit_log.TRANSACTION_COMMIT)

_PAGE = """\
# What is kept of damaged stores

Made by `python -m tests.engine.repair.verdict_table`; a test holds this page against what it prints.

Each of the {recipes} recipes damages a golden store ([fixtures](../../fixtures/README.md) tell of both), and unmodified
brokers 4.9.7, 5.3.3 and 5.5.0 were started on the result. Numbers are messages whose checks pass (lengths, address, CRC
of the body, no zeros over the end of the properties) and to which a unit leads from their place in their queue. Not
counted are placeholders, and raw prepared and rolled back messages, which lie in no queue.

- *there*: in the log of the damaged store, wherever they lie in it. `recover` may keep more: it writes an address or a
  queue into its message again where only that is wrong.
- *4.9.7*, *5.3.3*, *5.5.0*: in the broker, once it is up; a dash: it does not start. Consumers lose the others, even
  where they still lie in the log.
- *recover*: after `mqtool recover --abnormal`.
- *more*: than the best of the three brokers.
- *foretold*: for how many of the three `recover --as-broker` tells what they did: whether the broker starts, the end of
  the log, minimum, maximum and every unit of each queue, the heads of the index files, the checkpoint.

`recover` keeps more messages than the best broker in {better} recipes, {more:,} in all, and fewer in {worse}.
`recover --as-broker` foretells {foretold} of {verdicts} verdicts.

Brokers end the log at the first record whose checks fail (`body-byte`, `magic`, `total-size`, `zero-page`) and a queue
at the first unit that is none (`cq-middle-unit-zero`). After a clean stop they dispatch only what lies behind the last
unit of all queues (`one-queue-deleted`), after a crash only what lies behind the start of the segment they begin with
(`queues-deleted-checkpoint-middle-abort`; for 5.5.0 that is one of the last ten). 5.3.3 and 5.5.0 pass over a record
where they go on dispatching (`log-ahead-of-cq`, `cq-last-unit-missing`). 4.9.7 does not know the second kind of record,
which `special` is full of, and ends the log there.

| recipe | there | 4.9.7 | 5.3.3 | 5.5.0 | recover | more | foretold |
|---|--:|--:|--:|--:|--:|--:|--:|
{rows}
"""


class Row(NamedTuple):
    """How many messages are left of one recipe."""

    recipe: str
    there: int
    brokers: tuple[int | None, ...]  # None: it does not start
    ours: int
    foretold: int  # of how many versions ``recover --as-broker`` tells what they did

    @property
    def more(self) -> int:
        """How many more we keep than the best broker."""
        return self.ours - max(kept or 0 for kept in self.brokers)

    def line(self) -> str:
        """Return the row as a line of the page."""
        brokers = ("–" if kept is None else str(kept) for kept in self.brokers)
        more = str(self.more or "")
        return f"| `{self.recipe}` | {self.there} | {' | '.join(brokers)} | {self.ours} | {more} | {self.foretold} |"


def page(rows: list[Row]) -> str:
    """Return the whole page."""
    return _PAGE.format(
        recipes=len(rows),
        better=sum(row.more > 0 for row in rows),
        more=sum(max(row.more, 0) for row in rows),
        worse=sum(row.more < 0 for row in rows),
        foretold=sum(row.foretold for row in rows),
        verdicts=sum(len(row.brokers) for row in rows),
        rows="\n".join(row.line() for row in rows),
    )


def row_of(case: Case) -> Row:
    """Damage a golden store, let each broker and ``recover`` have it, and count."""
    with tempfile.TemporaryDirectory() as folder:
        store, config = case.store(Path(folder)), config_of(case.base)
        there = list(_sound_messages(StoreReader(store, config)))
        brokers = [_broker_keeps(case, version, store, there) for version in VERSIONS]
        carry_out(store, config, plan_mend(store, config, "recover", {"mode": "abnormal"}), Disk())
        reader = StoreReader(store, config)
        ours = _count(_sound_messages(reader), _units(reader))
    return Row(case.name, len(there), tuple(kept for kept, _ in brokers), ours, sum(agrees for _, agrees in brokers))


def _broker_keeps(case: Case, version: str, store: Path, there: list[Message]) -> tuple[int | None, bool]:
    """Return how many messages a broker has once it is up, and whether the recorded verdict says the same of it."""
    recorded = case.verdicts[version]
    broker = BrokerStart(StoreReader(store, config_of(case.base)), VERSIONS[version])
    with contextlib.closing(broker):
        try:
            broker.load()
            after_load = broker.view(digests=True)
            broker.start()
        except RefusedError:
            return None, not recorded.get("load_result")
        states = [seen(view) for view in (after_load, broker.view(digests=True))]
        in_log = (message for message in there if message.position < broker.max_physical_offset)
        kept = _count(in_log, _units_of_broker(broker))
    old = index_names(store)
    return kept, bool(recorded.get("load_result")) and all(
        without_chance(ours, old, version) == without_chance(theirs, old, version)
        for ours, theirs in zip(states, states_of(recorded), strict=True)
    )


def _sound_messages(reader: StoreReader) -> Iterator[Message]:
    """Yield the messages that are to be counted, damage passed over."""
    for message in reader.messages():
        is_sound = message.physical_offset == message.position and _crc(message.body) == message.body_crc
        is_in_queue = message.sys_flag & commit_log.TRANSACTION_MASK in _IN_QUEUES
        is_sound = is_sound and not message.raw_properties.endswith(b"\0")
        if is_sound and is_in_queue and "MQTOOL_LOST" not in message.properties:
            yield message


def _crc(body: bytes) -> int:
    return zlib.crc32(body) & 0x7FFFFFFF


def _count(messages: Iterable[Message], units: Iterable[Unit]) -> int:
    """Count the messages that a unit leads to from their place."""
    led_to = set(units)
    return sum((one.topic, one.queue_id, one.queue_offset, one.position, one.size) in led_to for one in messages)


def _units(reader: StoreReader) -> Iterator[Unit]:
    for key, queue in reader.consume_queues.items():
        yield from _rows(key, queue.first_offset, queue.units(queue.first_offset, queue.max_offset()))


def _units_of_broker(broker: BrokerStart) -> Iterator[Unit]:
    for key, queue in broker.queues.items():
        for first, units in queue.in_use():
            yield from _rows(key, first, units)


def _rows(key: tuple[str, int], first: int, units: Any) -> Iterator[Unit]:
    for queue_offset, (position, size) in enumerate(units[["physical_offset", "size"]].tolist(), first):
        yield *key, queue_offset, position, size


if __name__ == "__main__":
    sys.stdout.write(page([row_of(case) for case in cases()]))
