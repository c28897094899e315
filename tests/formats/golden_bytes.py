"""Where bytes lie in golden stores, as manifests tell: no help from the code that is tested."""

import bisect
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.golden import golden_store, manifest

LOG_FOLDERS = ("commitlog", "commitlog-*", "dledger-*/data")


def segments(store: Path, *folders: str) -> list[Path]:
    """Return the files of folders (glob patterns) that are named by a start address, in order of their addresses."""
    found = [file for folder in folders for file in store.glob(f"{folder}/{'[0-9]' * 20}")]
    return sorted(found, key=lambda file: int(file.name))


@functools.cache
def log(name: str) -> tuple[list[int], list[bytes]]:
    """Return start address and bytes of each segment of a golden store's commit log."""
    files = segments(golden_store(name), *LOG_FOLDERS)
    return [int(file.name) for file in files], [file.read_bytes() for file in files]


def read_log(name: str, offset: int, size: int) -> bytes:
    """Return bytes of a golden store's commit log."""
    starts, contents = log(name)
    number = bisect.bisect_right(starts, offset) - 1
    return contents[number][offset - starts[number] :][:size]


def records(name: str) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Yield each message of a golden store: what the manifest tells of it, and its bytes."""
    for message in manifest(name)["messages"]:
        yield message, read_log(name, message["phy"], message["size"])


def chunks(files: list[Path], size: int) -> Iterator[bytes]:
    """Cut files into pieces of one size; an incomplete one at the end of a file is left out."""
    for file in files:
        data = file.read_bytes()
        for at in range(0, len(data) - size + 1, size):
            yield data[at : at + size]


def queue_units(name: str, kind: str = "ConsumeQueue") -> dict[tuple[str, int], list[list[int]]]:
    """Return the units that Java found in each queue after loading a copy of the store, by topic and queue id."""
    found = {}
    for topic, queues in manifest(name)["load"]["after_load"]["queues"].items():
        for queue_id, queue in queues.items():
            if queue["type"] == kind:
                found[topic, int(queue_id)] = queue["units"]
    return found
