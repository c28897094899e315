"""Problems of older brokers with a newer store, although nothing in it is damaged.

Compared with 4.9.7 on stores of 5.3.3 and 5.5.0. It reads everything else that these wrote; queues in RocksDB it
rebuilds from the log. (Rules: store.md 13.)

Cost: linear in the number of topics and queues; if one may be in v2 records, linear in the log up to the first.
"""

from collections.abc import Collection, Iterator

import numpy as np

from mqtool.engine.repair.rebuild.plan import batch_topics_of
from mqtool.engine.store.commit_log import Gap
from mqtool.engine.store.reader import StoreReader
from mqtool.formats.commit_log import MAGIC_V2
from mqtool.formats.topics import TIMER_TOPIC

_LONGEST_TOPIC = 127
"""Bytes of a topic that fit into a record of the first kind."""
_MAX_NAMED = 3


def remarks(reader: StoreReader, kept: Collection[str], end_offset: int) -> Iterator[str]:
    """Yield what an older broker cannot read, or would not deliver.

    Args:
        reader: of the store.
        kept: topics of messages; those of the queues are added.
        end_offset: end of the log after the repair.
    """
    topics = {*kept, *(topic for topic, _ in (*reader.consume_queues, *reader.batch_consume_queues))}
    if any(len(topic.encode("utf-8", "surrogatepass")) > _LONGEST_TOPIC for topic in topics):
        first = _first_of_second_kind(reader, end_offset)
        if first is not None:
            yield (
                f"a broker before 5.1 cannot read this store: the message at {first:,} is a v2 record, which "
                "it takes for damage; it cuts the log there and deletes everything after it"
            )
    batches = sorted(topics & batch_topics_of(reader))
    if batches:
        more = f" and {len(batches) - _MAX_NAMED:,} more" if len(batches) > _MAX_NAMED else ""
        yield (
            f"a broker before 5.0 cannot serve {', '.join(batches[:_MAX_NAMED])}{more}: it does not support inner "
            "batches and starts queues of another type"
        )
    if TIMER_TOPIC in topics:
        yield "a broker before 5.0 never delivers timer messages that are not yet due"


def _first_of_second_kind(reader: StoreReader, end_offset: int) -> int | None:
    for table in reader.tables(0, end_offset):
        if not isinstance(table, Gap):
            rows = np.flatnonzero((table.column("magic_code") == MAGIC_V2) & (table.faults == 0))
            if len(rows):
                return int(table.column("position")[rows[0]])
    return None
