"""Stores in an HDFS of Hadoop's own: each command says of one what it says of the same files on a disk."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hdfs_native.fsspec import HdfsFileSystem
from pyarrow.dataset import dataset

from mqtool.engine.store import remote
from mqtool.engine.store.mapped_file import MappedFile
from mqtool.engine.store.remote import RemotePath, place
from mqtool.errors import Status, StoreChangedError
from mqtool.spark import rebuild
from mqtool.spark.stores import Store
from tests.commands.running import run
from tests.commands.test_spark import job
from tests.differential.conftest import jars
from tests.golden import golden_store
from tests.spark.frames import Frames

pytestmark = pytest.mark.java
_HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run an HDFS; its address."""
    command = ["java", "-Xmx512m", "-cp", jars("hadoop", "hadoop_pom.xml"), str(_HERE / "MiniHdfs.java")]
    folder = tmp_path_factory.mktemp("hdfs")
    with subprocess.Popen(
        [*command, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout
        port = process.stdout.readline().strip()
        yield f"127.0.0.1:{port}"
        remote.forget_storages()  # a client whose name node is gone waits for it
        process.kill()


def test_a_store_in_hdfs_is_told_as_the_same_files_on_a_disk(hdfs: str, tmp_path: Path) -> None:
    store, url = golden_store("mixed-533-clean"), f"hdfs://{hdfs}/brokers/a/store"
    host, _, port = hdfs.partition(":")
    HdfsFileSystem(host=host, port=int(port), skip_instance_cache=True).put(
        f"{store}/", "/brokers/a/store", recursive=True
    )

    for command in (
        "verify",
        "stats --by queue",
        "dump commitlog",
        "dump consumequeue",
        "find --key *1*",
        "get 0",
    ):
        ran = [run(*command.split(), "-s", where) for where in (store, url)]
        assert ran[0].output == ran[1].output
        assert ran[0].status == ran[1].status
    assert run("salvage", "-s", url, "--into", tmp_path / "made").status == Status.OK
    assert run("recover", "--yes", "-s", url).status == Status.USAGE
    assert run("info", "-s", f"hdfs://{hdfs}/brokers/b").status == Status.NO_INPUT
    assert run("info", "-s", "hdfs://127.0.0.1:1/brokers").status == Status.UNAVAILABLE


def test_a_rebuild_on_spark_puts_queues_and_index_into_hdfs_byte_for_byte(hdfs: str, tmp_path: Path) -> None:
    store = Store(str(golden_store("mixed-533-clean")))
    built = [rebuild.run(
        Frames(), store, into, queues=True, index=True, topics=None, version=None, partition_size=20_000
    ) for into in (tmp_path / "made", f"hdfs://{hdfs}/made/store")]  # fmt: skip

    host, _, port = hdfs.partition(":")
    storage = HdfsFileSystem(host=host, port=int(port), skip_instance_cache=True)
    there = {name.rpartition("/made/store/")[2]: storage.cat_file(name) for name in storage.find("/made/store")}
    assert built[0] == built[1]
    assert there == {
        str(path.relative_to(tmp_path / "made")): path.read_bytes()
        for path in (tmp_path / "made").rglob("*")
        if path.is_file()
    }


def test_jobs_read_stores_in_hdfs_and_write_their_rows_there(hdfs: str, tmp_path: Path) -> None:
    store, url = golden_store("mixed-533-kill"), f"hdfs://{hdfs}/brokers/killed/store"
    host, _, port = hdfs.partition(":")
    storage = HdfsFileSystem(host=host, port=int(port), skip_instance_cache=True)
    storage.put(f"{store}/", "/brokers/killed/store", recursive=True)

    for command in ("verify --live", "stats --by queue"):
        on_disk, in_hdfs = (job(*command.split(), "-s", where) for where in (store, url))
        assert on_disk.rows
        assert (in_hdfs.rows, in_hdfs.status) == (on_disk.rows, on_disk.status)

    assert job("export", "-s", store, "--into", tmp_path / "rows").status == Status.OK
    assert job("export", "-s", url, "--into", f"hdfs://{hdfs}/rows").status == Status.OK
    storage.get("/rows", str(tmp_path / "fetched"), recursive=True)
    rows, fetched = (
        dataset(tmp_path / name, partitioning="hive").to_table().sort_by("physical_offset")
        for name in ("rows", "fetched")
    )
    assert len(rows)
    assert fetched == rows
    again = job("export", "-s", url, "--into", f"hdfs://{hdfs}/rows")
    assert (again.status, "--into is not empty" in again.remarks) == (Status.USAGE, True)


def test_a_file_that_has_grown_in_hdfs_is_noticed(hdfs: str) -> None:
    host, _, port = hdfs.partition(":")
    storage = HdfsFileSystem(host=host, port=int(port), skip_instance_cache=True)
    storage.pipe_file("/grown/0", bytes(5000))
    path = place(f"hdfs://{hdfs}/grown/0")
    assert isinstance(path, RemotePath)
    file = MappedFile(path, 0, path.stat().st_size)
    _ = file.spool
    storage.pipe_file("/grown/0", bytes(6000))

    with pytest.raises(StoreChangedError, match="was replaced or grew"):
        file.read(0, 100)
