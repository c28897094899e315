"""The scenarios of replication (``ha``): masters, slaves and name servers of RocketMQ and ours, in any combination."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import orjson

from mqtool.engine.remoting.clock import wall_clock
from mqtool.engine.repair.findings import Severity
from mqtool.engine.repair.verify.store import verify_store
from mqtool.engine.store.message_store import MessageStore
from mqtool.engine.store.paths import StoreConfig
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import RecoveryNeededError
from mqtool.formats.settings import parse_settings
from tests.differential.java_broker import POM
from tests.differential.java_store import class_path
from tests.interop import HERE

OURS = "mqtool"
"""Stands for ``mqtool serve`` in the place of a version of RocketMQ."""
SCENARIO_COUNT = 36


def run_scenarios(
    master: str, slave: str, work: Path, *names: str, base_port: int = 21_000, patience: int = 3, jobs: int = 2
) -> Iterator[dict[str, Any]]:
    """Run scenarios, all that there are if none is named, and yield a row for each as it ends.

    Args:
        master: a version of RocketMQ, or ``OURS``.
        slave: the same.
        work: a folder for jars, stores and logs.
        names: of the scenarios.
        base_port: the first of a hundred ports for each job.
        patience: what all limits of time are multiplied by.
        jobs: scenarios at a time.

    Raises:
        RuntimeError: the judge ended before all of them were done.
    """
    versions = [one for one in (master, slave) if one != OURS] or ["5.3.3"]
    environment = {
        **os.environ,
        "RMQ_LIB": str(_jars(versions[0], work)),
        "HA_WORK": str(work),
        "HA_CDS": str(work / "cds"),
        "HA_PATIENCE": str(patience),
        "HA_JOBS": str(jobs),
        "HA_BASE_PORT": str(base_port),
        "HA_NAMESRV": str(HERE / "ha" / "mqtool.sh"),
        "PYTHON": sys.executable,
        "JAVA_TOOL_OPTIONS": "",
        "HA_KEEP": "1",  # see ``findings_in_stores``
    }
    for part, version in (("MASTER", master), ("SLAVE", slave)):
        if version == OURS:
            environment[f"HA_{part}"] = str(HERE / "ha" / "mqtool.sh")
        else:
            environment[f"HA_{part}_LIB"] = str(_jars(version, work))
    command = ["bash", str(HERE / "ha" / "run.sh"), *names]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if (start := line.find(b"{")) >= 0:  # behind what a client writes to the terminal
                    yield orjson.loads(line[start:])
            if process.wait() not in (0, 1):  # 1: a scenario failed
                logs = [path.read_text(errors="replace") for path in sorted(work.glob("*.log"))]
                raise RuntimeError(f"the judge ended with {process.returncode}:\n{''.join(logs)[:4000]}")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)


def findings_in_stores(work: Path, scenario: str, roles: Collection[str]) -> list[str]:
    """Return what ``verify`` finds, beyond notes, in the stores that a scenario has left in the folder of all.

    Brokers are killed at the end of a scenario: each store is opened first as at the next start, and closed. A slave
    that ended before it copied the table of topics may have queues of topics that it does not know.
    """
    sentences = []
    for role in roles:
        for config in sorted(work.glob(f"{scenario}-*/{role}*/broker.conf")):
            settings = StoreConfig(parse_settings(config.read_text()))
            store = config.parent / "store"
            try:
                MessageStore(store, settings, now=wall_clock()).close()
            except RecoveryNeededError:  # as ``serve`` does
                recover = ["recover", "-s", str(store), "-c", str(config), "--yes"]
                done = subprocess.run([sys.executable, "-m", "mqtool", *recover], capture_output=True, text=True)
                sentences += [f"{config.parent.name}: {done.stderr}"] if done.returncode else []
            sentences += [
                f"{config.parent.name}: {finding.code}: {finding.message}"
                for finding in verify_store(StoreReader(store, settings))
                if finding.severity > Severity.NOTE and not (finding.code == "CONFIG-NO-TOPIC" and role == "slave")
            ]
    return sentences


def _jars(version: str, work: Path) -> Path:
    """Return a folder with the jars of a version."""
    folder = work / f"lib-{version}"
    folder.mkdir(parents=True, exist_ok=True)
    for jar in class_path(version, POM).split(os.pathsep):
        link = folder / Path(jar).name
        if jar.endswith(".jar") and not link.exists():
            link.symlink_to(jar)
    return folder
