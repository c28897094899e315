"""The scenarios for the clients of others; ``README.md`` tells what they are and how they are run."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from tests.differential.java_broker import POM
from tests.differential.java_store import class_path

HERE = Path(__file__).parent

PULSAR_VERSION = "4.2.4"
PULSAR_POM = "../interop/pulsar/java/pom.xml"
"""The client and the tools of Apache Pulsar."""
SECRET = "12345678"
ACCOUNTS = f"""\
accounts:
  - {{accessKey: administrator, secretKey: "{SECRET}", admin: true}}
  - {{accessKey: producer, secretKey: "{SECRET}", defaultTopicPerm: PUB, topicPerms: [DefaultCluster_REPLY_TOPIC=PUB]}}
  - {{accessKey: consumer, secretKey: "{SECRET}", defaultTopicPerm: SUB, defaultGroupPerm: SUB}}
  - {{accessKey: everyone, secretKey: "{SECRET}", defaultTopicPerm: PUB|SUB, defaultGroupPerm: SUB}}
"""
"""Of a broker that controls access, each with just the rights that it needs."""


def run_scenarios(
    kind: str, version: str, name_server: str, work: Path, *names: str, with_accounts: bool = False
) -> Iterator[dict[str, Any]]:
    """Run scenarios of one kind of client, all that there are if none is named, and yield a row for each as it ends.

    Args:
        kind: the folder below this one: ``java``, ``go`` or ``node``.
        version: of the Java client; the others come in one.
        name_server: its address.
        work: a folder for classes and logs.
        names: of the scenarios.
        with_accounts: whether the clients use ``ACCOUNTS``.

    Raises:
        RuntimeError: the client ended before all of them were done.
    """
    if kind == "java":
        work.mkdir(parents=True, exist_ok=True)
        (work / f"classpath-{version}").write_text(class_path(version, POM))
    environment = {**os.environ, "ROCKETMQ_VERSION": version, "INTEROP_WORK": str(work), "JAVA_TOOL_OPTIONS": ""}
    environment.setdefault("INTEROP_JOBS", "2")
    if with_accounts:
        environment["INTEROP_SECRET"] = SECRET
    yield from _rows_of(["bash", str(HERE / kind / "run.sh"), name_server, *names], environment, work)


def run_pulsar_scenarios(
    kind: str, url: str, admin_url: str, work: Path, *names: str, trusted: Path | None = None, token: str = ""
) -> Iterator[dict[str, Any]]:
    """Run scenarios of one kind of client of Apache Pulsar, the usual ones if none is named, and yield a row for each.

    Args:
        kind: the folder below ``pulsar``: ``java``, ``go`` or ``python``.
        url: of the broker, ``pulsar://host:port``, of Java also ``pulsar+ssl://host:port``.
        admin_url: of its pages for administrators.
        work: a folder for classes and logs.
        names: of the scenarios.
        trusted: the file of the certificates that clients with TLS trust.
        token: of an account, for the scenario ``token_auth``.

    Raises:
        RuntimeError: the client ended before all of them were done.
    """
    work.mkdir(parents=True, exist_ok=True)
    if kind == "java":
        (work / f"classpath-{PULSAR_VERSION}").write_text(class_path(PULSAR_VERSION, PULSAR_POM))
    environment = {
        **os.environ,
        "CGO_ENABLED": "0",  # a compiler of C would take minutes for zstd
        "PULSAR_ADMIN": admin_url,
        "PULSAR_MAX_MESSAGE": str((4 << 20) - (1 << 16)),
        "PULSAR_TOKEN": token,
        "PULSAR_TRUST": str(trusted or ""),
        "PULSAR_VERSION": PULSAR_VERSION,
        "PYTHON": sys.executable,
        "INTEROP_WORK": str(work),
        "JAVA_TOOL_OPTIONS": "",
    }
    environment.setdefault("INTEROP_PATIENCE", "2")
    yield from _rows_of(["bash", str(HERE / "pulsar" / kind / "run.sh"), url, *names], environment, work)


def _rows_of(command: list[str], environment: dict[str, str], work: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows that a client writes, one a line."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                yield orjson.loads(line)
            if process.wait() not in (0, 1):  # 1: a scenario failed
                logs = [path.read_text(errors="replace") for path in sorted(work.rglob("stderr*.log"))]
                raise RuntimeError(f"the client ended with {process.returncode}:\n{''.join(logs)[:4000]}")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
