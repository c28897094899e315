"""``mqtool recover`` in a child process: its memory is not needed by the broker afterwards."""

import asyncio
import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from mqtool.errors import Status
from mqtool.processes import die_with


class Recovered(NamedTuple):
    """What came of it."""

    is_done: bool
    has_given_up: bool  # messages
    remarks: str


async def recover_store(store: Path, settings: Mapping[str, str], *options: str) -> Recovered:
    """Recover a store that nobody has open.

    Args:
        store: its folder.
        settings: of the store, by RocketMQ's names.
        options: of ``mqtool recover``.
    """
    of_store = [f"--set={name}={value}" for name, value in settings.items()]
    arguments = ["-m", "mqtool", "recover", "-s", str(store), "--yes", "-o", "jsonl", *of_store, *options]
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        *arguments,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        preexec_fn=partial(die_with, os.getpid()),
    )
    _, output = await child.communicate()
    has_given_up = child.returncode == Status.GIVEN_UP
    return Recovered(
        has_given_up or child.returncode == Status.OK, has_given_up, output.decode("utf-8", "replace").strip()
    )
