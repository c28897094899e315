"""Cases of ``Allocations.java``: who gets which queues by RocketMQ's strategies, and by ours."""

import json
import lzma
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mqtool.engine.client.rebalance import (
    allocate,
    averagely,
    averagely_by_circle,
    by_configuration,
    by_machine_room,
    consistent_hash,
    near_by,
)
from mqtool.formats.bodies import MessageQueue

Case = dict[str, Any]
_RECORDED = Path(__file__).parent.parent / "fixtures" / "allocations.jsonl.xz"


def recorded() -> list[Case]:
    """Return the cases of the fixture."""
    with lzma.open(_RECORDED, "rt") as lines:
        return parse(lines)


def parse(lines: Iterable[str]) -> list[Case]:
    """Return the cases that a run has printed."""
    return [json.loads(line) for line in lines if line.startswith("{")]


def javas(case: Case) -> dict[str, list[int]]:
    """Return by strategy the places of the queues in the sorted list; Java throws where there are none at all."""
    return {name: places if isinstance(places, list) else [] for name, places in case["found"].items()}


def ours(case: Case) -> dict[str, list[int]]:
    """Return the same by our strategies, which get queues and members unsorted."""
    queues = [
        MessageQueue(case["topic"], broker, number)
        for broker, count in case["brokers"].items()
        for number in range(count)
    ]
    in_order = sorted(queues)
    strategies = {
        "AVG": averagely,
        "AVG_BY_CIRCLE": averagely_by_circle,
        "CONFIG": by_configuration(in_order[: len(in_order) // 2]),
        "MACHINE_ROOM": by_machine_room(case["rooms"]),
        "CONSISTENT_HASH": consistent_hash(case["nodes"]),
        "MACHINE_ROOM_NEARBY-AVG": near_by(averagely, _of_broker, _room),
        "MACHINE_ROOM_NEARBY-AVG_BY_CIRCLE": near_by(averagely_by_circle, _of_broker, _room),
    }
    members = case["members"][::-1]
    return {
        name: [in_order.index(queue) for queue in allocate(strategy, queues, members, case["own"])]
        for name, strategy in strategies.items()
    }


def _of_broker(queue: MessageQueue) -> str:
    return _room(queue.broker_name)


def _room(name: str) -> str:
    room, separator, _ = name.partition("@")
    return room if separator else "none"
