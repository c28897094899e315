"""Answers of a broker's store in the form of ``fixtures/golden/damaged.json.xz``, and how two verdicts differ."""

import hashlib
from pathlib import Path
from typing import Any

from tests.differential.java_store import Answer

Verdict = dict[str, Any]

_COPIED = ("last_exit_ok", "load_result", "error", "error_at", "hangs", "behind_bytes", "abort_after")
_FOLDERS = ("commitlog", "commitlog-a", "commitlog-b", "consumequeue", "batchconsumequeue", "index", "checkpoint")
_STATES = ("after_load", "after_start")


def verdict_of(answer: Answer, store: Path) -> Verdict:
    """Return the verdict that an answer and the store it left behind amount to."""
    verdict = {key: answer[key] for key in _COPIED if key in answer}
    for name in _STATES:
        if name in answer:
            verdict[name] = {**answer[name], "queues": _short_queues(answer[name]["queues"])}
    if "after_start" in verdict and verdict["after_start"] == verdict["after_load"]:
        verdict["after_start"] = "same"
    return {**verdict, "files": files_of(store), "checkpoints": _possible_checkpoints(answer, store)}


def differences(ours: Verdict, recorded: Verdict, old_index_files: set[str]) -> list[str]:
    """Return what two verdicts disagree about, as sentences.

    ``old_index_files`` were there before recovery; index files made by it are named by the clock, so only their
    content counts. ``indexMsgTimestamp`` is left out before the end, since threads of their own write it.
    """
    found = [
        f"{key}: {ours.get(key)} instead of {recorded.get(key)}"
        for key in _COPIED
        if ours.get(key) != recorded.get(key)
    ]
    found += [line for name in _STATES for line in _state_differences(name, ours, recorded, old_index_files)]
    if recorded["files"].get("checkpoint") not in ours["checkpoints"]:
        found.append("files.checkpoint: another, whichever index file was flushed last")
    return found + _mapping_differences(
        "files",
        _without_clock(ours["files"], old_index_files),
        _without_clock(recorded["files"], old_index_files),
    )


def index_collides(answer: Answer) -> bool:
    """Tell whether two index files were begun in one millisecond and overwrote each other: a fault of brokers."""
    lists = [[row[0] for row in answer[state]["index"]] for state in _STATES if state in answer]
    return any(len(set(names)) < len(names) for names in lists)


def _short_queues(queues: dict[str, dict[str, Any]]) -> dict[str, dict[str, list[Any]]]:
    short = {
        topic: {
            number: [queue["min"], queue["max"], len(queue["units"]), digest(queue["units"])]
            for number, queue in numbers.items()
            if queue["units"] or queue["min"] > 0 or queue["max"] > 0
        }
        for topic, numbers in queues.items()
    }
    return {topic: numbers for topic, numbers in short.items() if numbers}


def digest(units: list[list[int]]) -> str:
    """Return the first 16 hex digits of the SHA-256 over a line ``offset:position:size:tags code`` for each unit."""
    lines = "".join(":".join(map(str, unit[:4])) + "\n" for unit in units)
    return _digest(lines.encode())


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def files_of(store: Path) -> dict[str, str]:
    """Return the first 16 hex digits of the SHA-256 of each file of the log, the queues, the index and checkpoint."""
    return {
        str(path.relative_to(store)): _digest(path.read_bytes())
        for path in sorted(store.rglob("*"))
        if path.is_file() and path.relative_to(store).parts[0] in _FOLDERS
    }


def _possible_checkpoints(answer: Answer, store: Path) -> set[str | None]:
    """Return the digests that the checkpoint might have.

    Each index file that is full is flushed by a thread of its own, and the last of them notes its time as
    ``indexMsgTimestamp``: brokers leave to chance which one that is.
    """
    path = store / "checkpoint"
    if not path.exists():
        return {None}
    data = path.read_bytes()
    rows = [row for state in _STATES if state in answer for row in answer[state]["index"]]
    times = [row[2].to_bytes(8, "big") for row in rows] + [data[16:24]]
    return {_digest(data[:16] + time + data[24:]) for time in times}


def _without_clock(files: dict[str, str], old_index_files: set[str]) -> dict[str, Any]:
    made = sorted(
        digest for name, digest in files.items() if name.startswith("index/") and name[6:] not in old_index_files
    )
    kept = {name: digest for name, digest in files.items() if not name.startswith(("index/", "checkpoint"))}
    old = {name: digest for name, digest in files.items() if name[6:] in old_index_files}
    return {**kept, **old, "index files made": made}


def _state_differences(name: str, ours: Verdict, recorded: Verdict, old_index_files: set[str]) -> list[str]:
    if (name in ours) != (name in recorded):
        return [f"{name} is there in one of both only"]
    if name not in ours:
        return []
    mine, theirs = _state(ours, name, old_index_files), _state(recorded, name, old_index_files)
    del mine["checkpoint"]["indexMsgTimestamp"], theirs["checkpoint"]["indexMsgTimestamp"]
    return _mapping_differences(name, mine, theirs)


def _state(verdict: Verdict, name: str, old_index_files: set[str]) -> dict[str, Any]:
    state = verdict["after_load"] if verdict[name] == "same" else verdict[name]
    index = [[row[0] if row[0] in old_index_files else "made", *row[1:]] for row in state["index"]]
    return {**state, "index": index, "checkpoint": dict(state["checkpoint"])}


def _mapping_differences(where: str, ours: dict[str, Any], recorded: dict[str, Any]) -> list[str]:
    found = []
    for key in sorted(ours.keys() | recorded.keys()):
        mine, theirs = ours.get(key), recorded.get(key)
        if isinstance(mine, dict) and isinstance(theirs, dict):
            found += _mapping_differences(f"{where}.{key}", mine, theirs)
        elif mine != theirs:
            found.append(f"{where}.{key}: {mine} instead of {theirs}")
    return found
