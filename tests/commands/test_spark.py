"""``mqtool spark``: each job from its command line, as a program and through ``spark-submit``, and what must be there.

A job is held against the command that answers the same on one machine; what jobs find is tested in ``tests/spark``.
"""

import functools
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import pyspark
import pytest

import mqtool
from mqtool.commands._output import Output
from mqtool.commands._spark import Finder, Job
from mqtool.commands.spark import _topics_of
from mqtool.engine.repair.verify.store import Level
from mqtool.engine.store.reader import StoreReader
from mqtool.errors import NotFoundError, Status, StoreChangedError, UsageError
from mqtool.spark import rebuild, verify
from mqtool.spark.session import package_into
from mqtool.spark.stores import Store, opened_once
from tests.commands.running import Ran, run
from tests.damage import with_noise
from tests.golden import copy_of, golden_store, manifest
from tests.spark.session import need_java

ROOT = Path(mqtool.__file__).parent.parent
STORE = "mixed-533-clean"
on_java = [pytest.mark.java, pytest.mark.xdist_group("spark commands")]


def ran(*words: object, **environment: str) -> "subprocess.CompletedProcess[str]":
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    settings = os.environ | {"PYTHONPATH": path, "PYSPARK_PYTHON": sys.executable} | environment
    return subprocess.run([*map(str, words)], capture_output=True, text=True, env=settings)


def program(*words: object) -> "subprocess.CompletedProcess[str]":
    need_java()
    return ran(sys.executable, "-m", "mqtool", "spark", *words, "--master", "local[2]")


@functools.cache
def _process() -> ProcessPoolExecutor:
    """Return a process for jobs: only the first of them starts a JVM, and no session of other tests is there."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))


def job(*words: object) -> Ran:
    """Run a job as ``program`` does, but in a process that stays."""
    need_java()
    return _process().submit(run, "spark", *words, "--master", "local[2]").result()


def rows_of(text: str) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in text.splitlines()]


class TestOnSpark:
    pytestmark = on_java

    def test_verify_finds_what_verify_finds_and_ends_as_it_does(self) -> None:
        store = golden_store("mixed-533-kill")

        one, many = run("verify", "-s", store), program("verify", "-s", store)

        assert one.rows
        assert rows_of(many.stdout) == one.rows
        assert many.returncode == one.status

    def test_rows_can_go_into_a_folder(self, tmp_path: Path) -> None:
        need_java()
        store, into = golden_store("mixed-533-kill"), tmp_path / "findings"

        program = [sys.executable, "-m", "mqtool.spark.verify", "--master", "local[2]", "-s", store]
        many = ran(*program, "--into", into, "--form", "jsonl")

        one = run("verify", "-s", store)
        found = [row for part in into.glob("*.json") for row in rows_of(part.read_text())]
        assert sorted(row["message"] for row in found) == sorted(row["message"] for row in one.rows)
        assert many.returncode == one.status
        assert f"written to {into}" in many.stderr

    def test_stats_counts_what_stats_counts_through_spark_submit_with_no_more_than_a_zip_file(
        self, tmp_path: Path
    ) -> None:
        need_java()
        store = golden_store(STORE)
        submit = Path(pyspark.__file__).parent / "bin/spark-submit"
        package = package_into(tmp_path)
        entry = tmp_path / "stats.py"
        entry.write_text("import mqtool\nprint(mqtool.__file__)\n" + (ROOT / "spark_jobs/stats.py").read_text())
        master = ("--master", "local-cluster[1,1,1024]")

        program = (entry, "--", "-s", store, "-o", "jsonl")
        many = ran(submit, *master, "--py-files", package, *program, PYTHONPATH="")

        # spark-submit makes one stream of two
        rows = "\n".join(line for line in many.stdout.splitlines() if line.startswith("{"))
        assert rows_of(rows) == run("stats", "-s", store).rows, many.stderr
        assert f"{package.name}/mqtool/__init__.py" in many.stdout
        assert many.returncode == Status.OK

    def test_find_shows_what_find_shows_and_tells_of_what_it_could_not_read(self, tmp_path: Path) -> None:
        store = copy_of(STORE, tmp_path)
        segment = min((store / "commitlog").iterdir())
        with segment.open("r+b") as file:
            file.seek(4)
            file.write(b"\0\0\0\0")  # of the first message

        one, many = run("find", "--text", "delta15", "-s", store), job("find", "--text", "delta15", "-s", store)

        assert one.rows
        assert many.rows == one.rows
        assert many.status == one.status == Status.DAMAGE
        assert "a place of the log could not be read" in many.remarks

    def test_find_tells_of_an_index_entry_that_refers_to_a_damaged_message_as_find_does(self, tmp_path: Path) -> None:
        store = copy_of(STORE, tmp_path)
        message = next(one for one in manifest(STORE)["messages"] if one["uniq_key"] and one["phy"] > 140_000)
        with (store / "commitlog" / f"{131_072:020}").open("r+b") as file:
            file.seek(message["phy"] - 131_072)
            file.write(b"\0\0\0\1")

        asked = ("find", "--key", message["uniq_key"], "-s", store)
        one, many = run(*asked), job(*asked)

        assert many.rows == one.rows == []
        assert many.status == one.status == Status.DAMAGE
        for remarks in (one.remarks, many.remarks):
            assert "an index entry refers to a place without a sound message" in remarks

    def test_what_is_exported_can_be_imported(self, tmp_path: Path) -> None:
        store, into = golden_store(STORE), tmp_path / "out"

        many = job("export", "-s", store, "--into", into)

        assert many.status == Status.OK
        files = sorted(into.rglob("*.parquet"))
        taken = run("import", *files, "--into", tmp_path / "again")
        assert taken.status == Status.OK, taken.remarks
        wanted = {row["unique_key"] for row in run("find", "--from", 0, "-s", store).rows}
        assert {row["unique_key"] for row in run("find", "--from", 0, "-s", tmp_path / "again").rows} == wanted

    def test_offsets_are_those_that_are_saved(self, tmp_path: Path) -> None:
        store = copy_of("retry-533-clean", tmp_path)
        saved = (StoreReader(store).config_table("consumerOffset.json") or {})["offsetTable"]
        with_entry = {"offsetTable": saved | {"entry-without-group": {"0": 1}}}
        (store / "config" / "consumerOffset.json").write_text(json.dumps(with_entry))

        many = job("offsets", "-s", store)

        found = {(f"{row['topic']}@{row['group']}", row["queue_id"]): row["saved"] for row in many.rows}
        wanted = {(name, int(queue)): offset for name, queues in saved.items() for queue, offset in queues.items()}
        assert wanted
        assert wanted.items() <= found.items()
        assert "left out: the saved offsets of 1 name without a topic or a group" in many.remarks
        assert many.status == Status.OK

    def test_compare_names_the_messages_of_a_segment_that_one_store_lacks(self, tmp_path: Path) -> None:
        store, other = golden_store(STORE), copy_of(STORE, tmp_path)
        first = min((other / "commitlog").iterdir())
        size = first.stat().st_size
        first.unlink()

        many = job("compare", "-s", store, "--with", other, "--by", "offset")

        wanted = [row["physical_offset"] for row in run("find", "--to", size, "-s", store).rows]
        rows = many.rows
        assert [row["physical_offset"] for row in rows] == wanted
        assert {row["side"] for row in rows} == {"left"}
        assert many.status == Status.DAMAGE

    @pytest.mark.parametrize("by", ["key", "offset"])
    def test_what_both_stores_have_damaged_is_not_called_the_same(self, by: str, tmp_path: Path) -> None:
        store = copy_of("txn-497-clean", tmp_path)
        with min((store / "commitlog").iterdir()).open("r+b") as log:
            log.seek(300)
            log.write(b"\x99")

        many = job("compare", "-s", store, "--with", store, "--by", by)

        assert many.rows == []
        assert many.status == run("compare", store, store, "--by", by).status == Status.WARNINGS
        for side in ("left", "right"):
            assert f"{side}: a place of the log cannot be read" in many.remarks

    @pytest.mark.parametrize(
        ("asked", "sentence"),
        [
            ("stats", "65,536 bytes of the log are missing from offset 65,536 on"),
            ("export --topic log-x --into {new}", "no file holds the bytes from 65,536 to 131,072"),
            ("find --from 0", "no file holds the bytes from 65,536 to 131,072"),
        ],
    )
    def test_a_segment_that_is_missing_within_a_log_is_told_as_by_the_command(
        self, asked: str, sentence: str, tmp_path: Path
    ) -> None:
        store = copy_of(STORE, tmp_path)
        (store / "commitlog" / f"{65_536:020}").unlink()

        one = run(*asked.format(new=tmp_path / "one.jsonl").split(), "-s", store)
        many = job(*asked.format(new=tmp_path / "many").split(), "-s", store)

        assert many.status == one.status == Status.DAMAGE
        assert f"mqtool: {sentence}\n" in one.remarks
        assert f"mqtool: {sentence}\n" in many.remarks
        assert "damaged records and places" not in many.remarks

    def test_noise_after_the_last_message_is_remarked_by_stats_as_by_the_command(self, tmp_path: Path) -> None:
        store = with_noise(copy_of(STORE, tmp_path))

        one, many = run("stats", "-s", store), job("stats", "-s", store)

        assert many.rows == one.rows
        assert many.status == one.status == Status.WARNINGS
        for remarks in (one.remarks, many.remarks):
            assert "after the last message are bytes that are not a message" in remarks

    @pytest.mark.parametrize("by", ["key", "offset"])
    def test_stores_that_lack_the_same_segment_are_not_called_the_same(self, by: str, tmp_path: Path) -> None:
        store = copy_of(STORE, tmp_path)
        (store / "commitlog" / f"{65_536:020}").unlink()

        many = job("compare", "-s", store, "--with", store, "--by", by)

        one = run("compare", store, store, "--by", by)
        assert many.rows == []
        assert many.status == one.status == Status.WARNINGS
        for side in ("left", "right"):
            assert f"{side}: a place of the log cannot be read" in many.remarks
            assert f"{side}: no file holds the bytes from 65,536 to 131,072" in one.remarks

    def test_a_limit_of_none_counts_all_the_same(self) -> None:
        many = job("find", "-s", golden_store(STORE), "--from", 0, "--limit", 0)

        assert (many.rows, many.status) == ([], Status.OK)
        assert f"{len(manifest(STORE)['messages'])} messages found, 0 shown" in many.remarks
        offsets = program("offsets", "-s", golden_store("retry-533-clean"), "--limit", 0)
        assert (rows_of(offsets.stdout), offsets.returncode) == ([], Status.OK)
        assert "0 groups and queues; --limit is reached" in offsets.stderr
        assert "Warning" not in offsets.stderr

    def test_rebuild_makes_what_rebuild_makes(self, tmp_path: Path) -> None:
        store = golden_store(STORE)

        many = job("rebuild", "all", "-s", store, "--into", tmp_path / "many")

        assert many.status == run("rebuild", "all", "-s", store, "--into", tmp_path / "one").status == Status.OK
        one, two = (
            {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
            for folder in (tmp_path / "one", tmp_path / "many")
        )
        assert one
        assert two == one


def test_each_store_has_the_settings_of_its_own_broker(tmp_path: Path) -> None:
    one, two, three = (copy_of("multipath-533-clean", tmp_path / name) for name in ("one", "two", "three"))
    for number, store in enumerate((one, two, three), 1):
        (store.parent / "broker.conf").write_text(f"brokerName=broker-{number}\n")
    (tmp_path / "other.conf").write_text("brokerName=other\n")
    output = Output("jsonl")

    finder = Finder(None, (("*/two/*", tmp_path / "other.conf"),), ("maxMessageSize=7",), output)
    found = finder.find((str(tmp_path / "*/*"),))
    with_one_file = Finder(tmp_path / "other.conf", (), (), output).find((str(one),))

    assert [store.config.settings.get("brokerName") for store in found] == ["broker-1", "broker-3", "other"]
    assert {store.config.settings["maxMessageSize"] for store in found} == {"7"}
    assert [store.config.settings for store in with_one_file] == [{"brokerName": "other"}]


def test_a_store_that_links_lead_to_as_well_is_read_once(tmp_path: Path) -> None:
    store = copy_of(STORE, tmp_path)
    (tmp_path / "current").symlink_to(store)

    found = Finder(None, (), (), Output("jsonl")).find((str(store), str(tmp_path / "*"), f"{tmp_path / 'current'}/"))

    assert [one.path for one in found] == [str(store)]


def test_each_store_is_searched_for_those_of_the_topics_that_it_has() -> None:
    output = Output("jsonl")
    finder = Finder(None, (), (), output)
    stores = [Store(str(golden_store(name))) for name in (STORE, "retry-533-clean")]
    job = Job("find", stores, None, {}, None, output, None, "parquet", finder)

    assert _topics_of(job, ("pay_*", "Retries")) == [frozenset(["pay_events"]), frozenset(["Retries"])]
    assert _topics_of(job, ()) == [None, None]
    with pytest.raises(NotFoundError, match="no topic matches nosuch"):
        _topics_of(job, ("pay_*", "nosuch"))


def test_a_pattern_that_matches_several_stores_is_not_compared(tmp_path: Path) -> None:
    for name in ("one", "two"):
        copy_of(STORE, tmp_path / name)

    for left, right in ((golden_store(STORE), tmp_path / "*" / STORE), (tmp_path / "*" / STORE, golden_store(STORE))):
        ran = run("spark", "compare", "-s", left, "--with", right)
        assert ran.status == Status.USAGE
        assert "two stores are compared: give one with -s and the other with --with" in ran.remarks


@pytest.mark.parametrize("words", ["compare {0} {1} --by key", "compare {0} {1}", "spark compare -s {0} --with {1}"])
def test_stores_whose_logs_are_gone_are_not_called_the_same(words: str, tmp_path: Path) -> None:
    stores = [copy_of(STORE, tmp_path / name) for name in ("one", "two")]
    for store in stores:
        shutil.rmtree(store / "commitlog")

    ran = run(*words.format(*stores).split())

    assert ran.status == Status.NO_INPUT
    assert "the same" not in ran.remarks


def test_a_store_without_any_of_the_topics_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[str] = []

    def plan(queries: list[tuple[Store, Any]], *_: object) -> None:
        planned.extend(store.path for store, _ in queries)
        raise UsageError("planned")

    monkeypatch.setattr("mqtool.spark.find.plan", plan)
    ran = run("spark", "find", "--topic", "pay_*", "-s", golden_store(STORE), "-s", golden_store("retry-533-clean"))

    assert "planned" in ran.remarks
    assert planned == [str(golden_store(STORE))]


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("ftp://host/out", "stores cannot be read from ftp://"),
        ("s3:///out", "names no place: give s3://NAME/PATH"),
    ],
)
def test_a_rebuild_into_what_is_no_storage_is_refused_in_a_sentence(url: str, told: str) -> None:
    ran = run("spark", "rebuild", "all", "-s", golden_store("mixed-533-clean"), "--into", url)

    assert ran.status == Status.USAGE
    assert told in ran.remarks


_listed: list[str] | None = None


def _note_list(event: str, given: tuple[Any, ...]) -> None:
    if _listed is not None and event in ("os.listdir", "os.scandir"):
        _listed.append(str(given[0]))


sys.addaudithook(_note_list)


def test_a_job_lists_a_log_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = copy_of("mixed-533-clean", tmp_path)
    (tmp_path / "broker.conf").write_text("brokerName=broker-a\n")
    output = Output("jsonl")
    monkeypatch.setattr(sys.modules[__name__], "_listed", [])

    with opened_once():
        finder = Finder(None, (), (), output)
        stores = finder.find((str(tmp_path / "*"),))
        one = Job("verify", stores, None, {}, None, output, None, "parquet", finder)
        planned = [
            verify.plan(one.stores, Level.FULL, 1 << 20),
            rebuild.plan(stores[0], True, True, None, None, 1 << 20),
        ]
        one.tell_inferred()
        one.tell_may_be_live()
        one.tell("done")

    assert all(planned)
    assert _listed is not None
    assert [path for path in _listed if Path(path) == root / "commitlog"] == [str(root / "commitlog")]


@pytest.mark.parametrize(
    ("asked", "is_gone"),
    [
        ("stats", True),
        ("find --from 0", True),
        ("export --into {new}", True),
        ("rebuild all --into {new}", True),
        ("rebuild all --into {new}", False),
    ],
)
def test_a_store_whose_log_is_gone_or_has_wrong_names_is_refused_as_by_the_command(
    asked: str, is_gone: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(_: Job) -> None:
        raise AssertionError("a session begins")

    monkeypatch.setattr(Job, "session", begin)
    root = copy_of(STORE, tmp_path / "damaged")
    segments = sorted((root / "commitlog").iterdir())
    if is_gone:
        shutil.rmtree(root / "commitlog")
    else:
        segments[0].rename(root / "commitlog" / f"{1 << 40:020}")
    new = tmp_path / ("new.jsonl" if asked.startswith("export") else "new")
    words = asked.format(new=new).split()

    one, many = run(*words, "-s", root), run("spark", *words, "-s", root)

    assert one.status in (Status.NO_INPUT, Status.USAGE)
    assert (many.status, many.remarks) == (one.status, one.remarks)
    assert not new.exists()


def test_a_pattern_for_settings_that_matches_no_store_is_refused() -> None:
    told = run("spark", "stats", "-s", golden_store(STORE), "--config-of", "*/nosuch=/dev/null")

    assert told.status == Status.USAGE
    assert "--config-of */nosuch matches none of the stores" in told.remarks


def test_a_pyspark_that_is_too_old_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", "3.4.4")

    told = run("spark", "stats", "-s", golden_store(STORE))

    assert told.status == Status.UNAVAILABLE
    assert "needs PySpark 3.5 or later, and 3.4.4 is installed" in told.remarks


def test_without_pyspark_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)

    found = run("spark", "stats", "-s", golden_store(STORE))

    assert found.status == Status.UNAVAILABLE
    assert found.remarks.strip().endswith("pip install 'mqtool[spark]'")


@pytest.mark.parametrize("home", ["", "/nowhere"])
def test_without_java_a_sentence_says_what_to_install(home: str) -> None:
    found = ran(
        sys.executable, "-m", "mqtool", "spark", "stats", "-s", golden_store(STORE), PATH="/nowhere", JAVA_HOME=home
    )

    assert found.returncode == Status.UNAVAILABLE
    assert found.stderr.startswith("mqtool: Spark needs Java 17 or later, and ")
    assert "install a JDK 17" in found.stderr
    assert found.stderr.count("\n") == 1


def test_segments_that_went_while_a_job_ran_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = copy_of(STORE, tmp_path)
    job = Job(
        "stats",
        [Store(str(store))],
        None,
        {},
        None,
        Output("jsonl"),
        None,
        "parquet",
        Finder(None, (), (), Output("jsonl")),
    )
    first = min((store / "commitlog").iterdir())

    first.unlink()
    job.tell("counted")

    assert f"a segment disappeared while the job ran, {first} first" in capsys.readouterr().err

    second = min((store / "commitlog").iterdir())
    os.truncate(second, 1000)
    with pytest.raises(StoreChangedError, match=f"{second.name} was truncated while the job ran"):
        job.tell("counted")
