"""A broker without sockets at work for ``bench/rules.py``, run by file so that it loads the mqtool of any checkout.

It takes lines ``KIND COUNT`` and prints the processor time of that, in nanoseconds a request. Frames go through the
same parsing and writing as with a server; units and keys are written as they are there.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import count, islice
from pathlib import Path

from mqtool.engine.broker.broker import BrokerController
from mqtool.engine.broker.remoting_door import RemotingDoor
from mqtool.engine.remoting.connection import Connection
from mqtool.engine.store.message_store import MessageStore
from mqtool.formats import remoting
from mqtool.formats.codes import RequestCode
from mqtool.formats.headers import Pull, Send, build_header
from mqtool.formats.remoting import RemotingCommand, build_frame, frame_buffers

TOPIC, QUEUES, BACKLOG = "Bench", 8, 8_000
AT_ONCE = 8
"""Frames of a read, which are answered together."""
_BODY = bytes(range(256)) * 4
_PROPERTIES = "KEYS\x01order-7\x02UNIQ_KEY\x017F0000010B4F18B4AAC2000000000001\x02WAIT\x01true\x02TAGS\x01TagA\x02"


class RulesLoad:
    """One client of one broker."""

    def __init__(self, root: Path) -> None:
        self._store = MessageStore(root, now=_now())
        self._door = RemotingDoor(BrokerController(self._store, _now()))
        self._peer = remoting.Peer(1, "127.0.0.1", 40_000)  # type: ignore[attr-defined]  # where older checkouts have it
        self._connection = Connection()
        element = b"".join(
            (bytes(12), len(_BODY).to_bytes(4), _BODY, len(_PROPERTIES).to_bytes(2), _PROPERTIES.encode())
        )
        self._batch = 32 * ((len(element) + 4).to_bytes(4) + element)
        self._kinds: dict[str, Callable[[int], bytes]] = {
            "send": lambda number: self._send(RequestCode.SEND_MESSAGE_V2, number, _BODY),
            "batch": lambda number: self._send(RequestCode.SEND_BATCH_MESSAGE, number, self._batch),
            "pull-1": lambda number: self._pull(0, number // QUEUES, 1),
            "pull-32": lambda number: self._pull(0, number * 32, 32),
            "pull-8-queues": lambda number: self._pull(number % QUEUES, number // QUEUES, 1),
        }
        self.run("send", QUEUES * BACKLOG)

    def run(self, kind: str, requests: int) -> float:
        """Do something so many times, and return the nanoseconds of the processor that each took."""
        frames = map(self._kinds[kind], count())
        reads = [b"".join(islice(frames, AT_ONCE)) for _ in range(requests // AT_ONCE)]
        door, peer, connection = self._door, self._peer, self._connection
        start, said = time.process_time_ns(), 0
        for data in reads:
            now = _now()
            connection.receive(data)
            out = []
            for command in [*connection.commands()]:
                for _, answer in door.handle(command, peer, now):
                    out += frame_buffers(answer)
                    said += answer.code == 0
            if door.next_tick(now) <= now:
                door.tick(now)
        spent = time.process_time_ns() - start
        assert said == len(reads) * AT_ONCE, f"{kind}: {said:,} of {len(reads) * AT_ONCE:,} went well"
        return spent / said

    def _send(self, code: int, number: int, body: bytes) -> bytes:
        is_batch = code == RequestCode.SEND_BATCH_MESSAGE
        properties = "" if is_batch else _PROPERTIES
        header = Send("P", TOPIC, "TBW102", QUEUES, number % QUEUES, 0, _now(), 0, properties, batch=is_batch)
        return build_frame(RemotingCommand(code, 0, number, build_header(header, short=True), body))

    def _pull(self, queue_id: int, offset: int, most: int) -> bytes:
        header = Pull("G", TOPIC, queue_id, offset % (BACKLOG - most), most, 4, 0, 0, 0, "*", "TAG")
        return build_frame(RemotingCommand(RequestCode.PULL_MESSAGE, 0, offset, build_header(header)))


def _now() -> int:
    return time.time_ns() // 1_000_000


def _asked() -> Iterator[tuple[str, int]]:
    for line in sys.stdin:
        kind, requests = line.split()
        yield kind, int(requests)


def main() -> None:
    """Do what is asked for."""
    with tempfile.TemporaryDirectory(prefix="mqtool-bench-") as name:
        load = RulesLoad(Path(name))
        print("ready", flush=True)
        for kind, requests in _asked():
            print(load.run(kind, requests), flush=True)


if __name__ == "__main__":
    main()
