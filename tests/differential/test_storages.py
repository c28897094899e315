"""Stores in emulators of Google's and Azure's storage: commands say of one what they say of files on a disk."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
import pytest

from mqtool.engine.repair.rebuild.plan import build
from mqtool.engine.store import remote
from mqtool.engine.store.disk import Disk
from mqtool.engine.store.mapped_file import MappedFile
from mqtool.engine.store.reader import StoreReader
from mqtool.engine.store.remote import RemotePath, place
from mqtool.errors import NotFoundError, Status, StoreChangedError
from mqtool.spark import rebuild
from mqtool.spark.stores import Store
from tests.commands.running import run
from tests.differential.conftest import REQUIRED
from tests.golden import golden_store
from tests.ports import free_port
from tests.spark.frames import Frames
from tests.storage import environment

pytestmark = [pytest.mark.java, pytest.mark.xdist_group("s3")]
_AZURITE = "azurite@3.35.0"
_AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""What every Azurite has."""


@contextmanager
def google() -> Iterator[Any]:
    from gcp_storage_emulator.server import create_server

    server = create_server("127.0.0.1", port := free_port(), in_memory=True, default_bucket="brokers")
    server.start()
    values = {
        "STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{port}",
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false",  # asks by gRPC what the emulator does not know
    }
    try:
        with environment(values):
            import gcsfs

            fsspec.config.conf.setdefault("gs", {})["token"] = "anon"
            yield gcsfs.GCSFileSystem(token="anon", skip_instance_cache=True)
    finally:
        fsspec.config.conf.pop("gs", None)
        server.stop()


@contextmanager
def azure() -> Iterator[Any]:
    folder = Path(tempfile.gettempdir()) / f"mqtool-{_AZURITE}"
    main = folder / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    if not (folder / "done").exists():
        if shutil.which("npm") is None:
            (pytest.fail if REQUIRED else pytest.skip)("AZURE WAS NOT TRIED: there is no npm")
        folder.mkdir(exist_ok=True)
        subprocess.run(["npm", "install", "--no-audit", "--no-fund", "--prefix", folder, _AZURITE], check=True)
        (folder / "done").touch()
    command = ["node", str(main), "--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent"]
    with subprocess.Popen(
        [*command, "--blobPort", str(port := free_port())], stdout=subprocess.PIPE, text=True, cwd=folder
    ) as process:
        assert process.stdout
        while "listens on" not in process.stdout.readline():
            assert process.poll() is None
        address = f"http://127.0.0.1:{port}/devstoreaccount1"
        account = f"DefaultEndpointsProtocol=http;AccountName=devstoreaccount1;AccountKey={_AZURE_KEY};"
        values = {"AZURE_STORAGE_CONNECTION_STRING": f"{account}BlobEndpoint={address};"}
        try:
            with environment(values):
                import adlfs

                storage = adlfs.AzureBlobFileSystem(
                    connection_string=values["AZURE_STORAGE_CONNECTION_STRING"], skip_instance_cache=True
                )
                storage.mkdir("brokers")
                yield storage
        finally:
            process.kill()


def files_below(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file()]


@pytest.mark.parametrize(("scheme", "server"), [("gs", google), ("abfs", azure)])
def test_a_store_in_an_emulator_is_told_as_the_same_files_on_a_disk(scheme: str, server: Any, tmp_path: Path) -> None:
    store, url = golden_store("mixed-533-clean"), f"{scheme}://brokers/a/store"
    with server() as storage:
        remote.forget_storages()
        for path in files_below(store):
            storage.pipe_file(f"brokers/a/store/{path.relative_to(store)}", path.read_bytes())

        for command in ("verify", "stats --by queue", "dump commitlog", "dump consumequeue", "find --key *1*", "get 0"):
            ran = [run(*command.split(), "-s", where) for where in (store, url)]
            assert (ran[1].status, ran[1].output) == (ran[0].status, ran[0].output), (command, ran[1].remarks)
        assert run("salvage", "-s", url, "--into", tmp_path / "made").status == Status.OK
        assert run("recover", "--yes", "-s", url).status == Status.USAGE
        assert run("info", "-s", f"{scheme}://brokers/b").status == Status.NO_INPUT

        one = build(StoreReader(store), tmp_path / "one", Disk())
        made_at = f"{scheme}://brokers/made"
        two = rebuild.run(
            Frames(), Store(url), made_at, queues=True, index=True, topics=None, version=None, partition_size=20_000
        )
        assert (two.queues, two.index_names, two.entries) == (one.queues, one.index_names, one.entries)
        remote.forget_storages()
        made = {str(path.relative_to(tmp_path / "one")): path for path in files_below(tmp_path / "one")}
        put = {name.partition("brokers/made/")[2]: name for name in storage.find("brokers/made")}
        assert made.keys() == put.keys()
        assert all(storage.cat_file(put[name]) == path.read_bytes() for name, path in made.items())

        path = place(f"{url}/checkpoint")
        assert isinstance(path, RemotePath)
        before = MappedFile(path.fresh(), 0, 4096)
        assert before.read(0, 4096) == (store / "checkpoint").read_bytes()
        before = MappedFile(path.fresh(), 0, 4096)
        _ = before.spool
        storage.rm_file("brokers/a/store/checkpoint")
        storage.pipe_file("brokers/a/store/checkpoint", bytes(4096))
        with pytest.raises(StoreChangedError, match="was replaced or grew"):
            before.read(0, 10)
        storage.rm_file("brokers/a/store/checkpoint")
        with pytest.raises(NotFoundError, match="does not exist"):
            before.read(0, 10)
    remote.forget_storages()
