"""What rules of RocketMQ's client gave in random cases, and what ours give: made by ``differential/*.java``."""

import json
import lzma
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from mqtool.engine.client.process_queue import ProcessQueue
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
Step = dict[str, Any]
_FIXTURES = Path(__file__).parent.parent / "fixtures"


def recorded(name: str) -> list[Any]:
    """Return the cases of a fixture."""
    with lzma.open(_FIXTURES / f"{name}.jsonl.xz", "rt") as lines:
        return parse(lines)


def parse(lines: Iterable[str]) -> list[Any]:
    """Return the cases that a run has printed."""
    return [json.loads(line) for line in lines if line.startswith(("{", "["))]


# Allocations.java: who gets which queues


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


# ProcessQueues.java: what a process queue makes of operations


class Held(NamedTuple):
    """A message as a process queue sees it."""

    queue_offset: int
    body: bytes


def process(steps: list[Step]) -> list[Step]:
    """Return the steps with what our process queue makes of them."""
    queue: ProcessQueue[Held] = ProcessQueue(now=0)
    taken: list[Held] = []
    return [_process(queue, step, taken) for step in steps]


def _process(queue: ProcessQueue[Held], step: Step, taken: list[Held]) -> Step:
    messages = [Held(offset, bytes(size)) for offset, size in step["messages"]]
    found: Step = {"do": step["do"], "messages": step["messages"]}
    match step["do"]:
        case "put":
            found["result"] = queue.put(messages)
        case "remove":
            offset = queue.remove(messages, now=0)
            found["result"] = -1 if offset is None else offset
        case "take":
            more = queue.take(step["most"], now=0)
            taken += more
            found |= {"most": step["most"], "result": [held.queue_offset for held in more]}
        case "commit":
            found["result"] = queue.commit()
            taken.clear()
        case "rollback":
            queue.put_back(taken)
            taken.clear()
        case "again":
            queue.put_back(messages)
            taken.clear()
    return found | {"count": queue.count, "size": queue.size, "span": queue.span, "holds": len(queue) > 0}
