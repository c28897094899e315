"""The same jobs with executors of their own: local-cluster, one that is killed, and Spark Connect."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest

from mqtool.engine.repair.verify.store import Level
from mqtool.spark import verify
from mqtool.spark.session import session
from mqtool.spark.spread import spread
from tests.golden import golden_store
from tests.ports import free_port
from tests.spark.session import end_session, need_java
from tests.spark.test_jobs import findings_of, golden, wanted_of

pytestmark = [
    pytest.mark.java,
    pytest.mark.xdist_group("spark"),
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"),
]

CLUSTER = "local-cluster[2,1,1024]"
ROOT = Path(verify.__file__).parent.parent.parent


def mqtool(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mqtool", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    # Executors are to run what is shipped to them, not what lies here: they see this folder only by its path.
    need_java()
    end_session()
    folder = str(tmp_path_factory.mktemp("executors"))
    with session(CLUSTER, {"spark.executorEnv.XDG_CACHE_HOME": folder}, "tests") as made:
        yield made


def test_executors_run_the_package_that_is_shipped_to_them(cluster: Any) -> None:
    def where(_: Any) -> Iterator[Any]:
        import pyarrow

        from mqtool.formats import native, scan

        code = native.source_of("kernels.py")
        yield pyarrow.RecordBatch.from_pydict({"file": [scan.__file__], "size": [len(code)]})

    rows = spread(cluster, range(4), where, "file string, size long").collect()

    assert {row["size"] for row in rows} == {(ROOT / "mqtool/formats/kernels.py").stat().st_size}
    assert all("mqtool_package.zip" in row["file"] for row in rows)


def test_a_cluster_finds_what_verify_finds(cluster: Any) -> None:
    stores = [golden(name) for name in ("mixed-533-kill", "batchcq-533-kill", "txn-533-kill")]

    rows = verify.findings(cluster, stores, Level.FULL, 64 << 10).collect()

    assert findings_of(rows) == wanted_of(stores)


def test_an_executor_that_is_killed_changes_nothing(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = golden("mixed-533-kill")
    killed = tmp_path / "killed"

    def kill_once(item: verify.VerifyTask) -> Iterator[Any]:
        from mqtool.spark.verify import verify_task  # that of the executor, where nothing stands in its place

        batches = list(verify_task(item))
        if any(one.segment for one in item.stretches) and not killed.exists():
            daemon = os.getppid()
            executor = int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])
            killed.write_text(str(executor))
            os.kill(executor, signal.SIGKILL)
        yield from batches

    monkeypatch.setattr(verify, "verify_task", kill_once)
    rows = verify.findings(cluster, [store], Level.FULL, 64 << 10).collect()

    assert not Path("/proc", killed.read_text(), "stat").exists()
    assert findings_of(rows) == wanted_of([store])


def test_spark_connect_finds_what_verify_finds(tmp_path: Path) -> None:
    need_java()
    port = free_port()
    home = Path(pyspark.__file__).parent
    log = (tmp_path / "server.log").open("w+")
    server = subprocess.Popen(
        [
            home / "bin/spark-submit", "--master", "local[2]", "--class",
            "org.apache.spark.sql.connect.service.SparkConnectServer",
            "--conf", f"spark.connect.grpc.binding.port={port}",
            "--conf", "spark.connect.grpc.binding.address=127.0.0.1",
            "--conf", "spark.ui.enabled=false",
            "--conf", f"spark.pyspark.python={sys.executable}",
            "spark-internal",
        ],
        stdout=log, stderr=log, cwd=tmp_path, env=os.environ | {"PYSPARK_PYTHON": sys.executable},
    )  # fmt: skip
    try:
        store = golden_store("mixed-533-kill")
        found = mqtool("spark", "verify", "--master", f"sc://127.0.0.1:{port}", "-s", store, "-o", "jsonl")
        wanted = mqtool("verify", "-s", store, "-o", "jsonl")
        assert found.stdout, found.stderr + (tmp_path / "server.log").read_text()[-3000:]
        assert sorted(found.stdout.splitlines()) == sorted(wanted.stdout.splitlines())
        assert found.returncode == wanted.returncode
        counted = mqtool("spark", "stats", "--master", f"sc://127.0.0.1:{port}", "-s", store, "-o", "jsonl")
        assert counted.stdout == mqtool("stats", "-s", store, "-o", "jsonl").stdout
    finally:
        server.kill()
        server.wait()
        log.close()
