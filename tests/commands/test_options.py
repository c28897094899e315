"""What all commands share: options, their help, and what a store may be."""

import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest

from mqtool.cli import COMMANDS, cli
from mqtool.commands._options import matching
from mqtool.engine.client_runtime.admin_queries import check_known
from mqtool.engine.store.mapped_file import MappedFile
from mqtool.errors import NotFoundError, Status
from tests.commands.running import run
from tests.golden import copy_of, golden_store, manifest
from tests.retention import COMMANDS as READING
from tests.retention import moments, taking, wrong_at

SHARED = (
    "rate",
    "topic",
    "queue",
    "tag",
    "key",
    "from",
    "to",
    "since",
    "until",
    "limit",
    "body",
    "jobs",
    "store",
    "output",
)
OWN = {("pull", "topic"), ("pull", "queue"), ("pull", "tag"), ("pull", "since")}  # one queue, seen by a consumer
OWN |= {("consume", "topic"), ("bench", "topic"), ("trace", "key")}  # those of a group, by name; one to be made
OWN |= {("apply", "store"), ("undo", "store"), ("export", "output")}  # a plan names its store; rows are no tables
OWN |= {("mirror", "from"), ("mirror", "to"), ("mirror", "topic")}  # clusters; what must be named
OWN |= {("send", name) for name in ("topic", "queue", "tag", "key")} | {("serve", "store")}  # what is made, not chosen


def option(command: str, name: str) -> click.Option | None:
    loaded = cli.get_command(click.Context(cli), command)
    assert loaded is not None
    found = [one for one in loaded.params if isinstance(one, click.Option) and f"--{name}" in one.opts]
    return found[0] if found else None


@pytest.mark.parametrize("name", SHARED)
def test_an_option_means_the_same_in_every_command(name: str) -> None:
    helps = {
        (one.help, one.metavar, type(one.type))
        for command in COMMANDS
        if (command, name) not in OWN and (one := option(command, name))
    }

    assert len(helps) == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_has_a_help(command: str) -> None:
    loaded = cli.get_command(click.Context(cli), command)

    assert loaded is not None
    for one in loaded.params:
        if isinstance(one, click.Option):
            assert one.help, one.name
            assert one.help.endswith((".", "'", "red'\"")), one.help


@pytest.mark.parametrize(
    "command", ["info", "get 0", "find --text a", "pull --topic log-x", "stats", "verify", "dump commitlog"]
)
def test_a_single_file_that_is_no_log_ends_with_66(command: str) -> None:
    path = golden_store("mixed-533-clean") / "config" / "topics.json"

    ran = run(*command.split(), "-s", path)

    assert (ran.status, ran.output) == (Status.NO_INPUT, "")
    assert "give the store that it belongs to" in ran.remarks


def test_a_bound_of_zero_is_a_condition_too() -> None:
    path = golden_store("txn-533-clean")

    assert run("find", "--from", 0, "--limit", 1, "-s", path).status == Status.OK
    assert run("find", "-s", path).status == Status.USAGE


def test_a_misspelt_setting_is_refused_and_the_one_that_was_meant_is_named() -> None:
    for command in (["verify"], ["recover", "--dry-run"], ["doctor"], ["topic", "list"]):
        ran = run(*command, "-s", golden_store("mixed-533-clean"), "--set", "mappedFilesizeCommitLog=65536")

        assert (ran.status, ran.output) == (Status.USAGE, "")
        assert "did you mean mappedFileSizeCommitLog?" in ran.remarks
    ran = run("info", "-s", golden_store("mixed-533-clean"), "--set", "nothingLikeThis=1")
    assert ran.status == Status.USAGE
    assert "nothingLikeThis" in ran.remarks


def test_a_setting_in_a_file_that_nobody_knows_is_remarked_and_known_ones_are_not(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("mappedFilesizeCommitLog=65536\nsendMessageThreadPoolNums=4\nmyPluginsOwn=1\nlistenPort=10911\n")

    for command in (["verify"], ["recover", "--dry-run"], ["doctor"], ["topic", "list"]):
        ran = run(*command, "-s", golden_store("mixed-533-clean"), "-c", file)

        assert "did you mean mappedFileSizeCommitLog?" in ran.remarks
        assert "myPluginsOwn" in ran.remarks
        assert "listenPort" not in ran.remarks
        assert "sendMessageThreadPoolNums" not in ran.remarks


@pytest.mark.parametrize("command", ["stats", "find --topic Multi", "export", "dump commitlog"])
def test_messages_of_a_segment_that_is_there_twice_are_read_once(command: str, tmp_path: Path) -> None:
    name = "multipath-533-clean"
    store = copy_of(name, tmp_path)
    first = store / "commitlog-a" / f"{131_072:020}"
    second = store / "commitlog-b" / first.name
    second.write_bytes(first.read_bytes())
    folders = [f"--set=storePathCommitLog={store / 'commitlog-a'},{store / 'commitlog-b'}"]

    ran = run(*command.split(), "-s", store, *folders)

    count = sum(row["message_count"] for row in ran.rows) if command == "stats" else len(ran.rows)
    assert (ran.status, count) == (Status.OK, len(manifest(name)["messages"]))
    assert f"{second} is not read: {first} is the same segment" in ran.remarks


@pytest.mark.parametrize(
    "command",
    [
        "recover --abnormal --yes -s STORE",
        "salvage -s STORE --into NEW",
        "import EXPORT --into NEW --set mappedFileSizeCommitLog=65536",
        "compare STORE WHOLE",
        "get -s STORE KEY",
    ],
)
def test_commands_that_are_recommended_can_be_pasted_whatever_the_names(command: str, tmp_path: Path) -> None:
    store, whole = copy_of("mixed-533-clean", tmp_path / "a b"), golden_store("mixed-533-clean")
    (store / "commitlog" / f"{65_536:020}").write_bytes(bytes(65_536))
    run("export", "-s", store, "--into", tmp_path / "a b" / "export.jsonl")
    names = {"STORE": store, "WHOLE": whole, "NEW": tmp_path / "a b" / "new", "KEY": "no such key"}
    names["EXPORT"] = tmp_path / "a b" / "export.jsonl"
    given = [names.get(word, word) for word in command.split()]

    ran = run(*given)

    commands = [shlex.split(text) for text in re.findall(r"`(mqtool [^`]*)`", ran.remarks) if "-" in text]
    assert commands
    for words in commands:
        assert {word for word in words if " " in word} <= {str(name) for name in names.values()}
        assert any(" " in word for word in words)


@pytest.mark.parametrize(
    "command",
    [["stats", "-j", "1"], ["find", "--text", "a"], ["dump", "commitlog"], ["export"], ["verify", "-j", "1"]],
    ids=lambda command: command[0],
)
def test_reading_goes_on_where_retention_takes_the_oldest_files(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    segments = sorted((store / "commitlog").iterdir())
    really_map = MappedFile.map

    def map_and_lose(file: MappedFile) -> Any:
        mapped = really_map(file)
        if file.path == segments[0]:
            for path in segments[:3]:
                path.unlink(missing_ok=True)
        return mapped

    monkeypatch.setattr(MappedFile, "map", map_and_lose)
    into = ["--into", tmp_path / "out.jsonl"] if command == ["export"] else []

    ran = run(*command, *into, "-s", store)

    assert ran.status == Status.OK
    assert ran.remarks.count("was deleted by retention") >= 2


@pytest.mark.parametrize("command", READING)
def test_reading_goes_on_whenever_retention_takes_files_of_log_queues_and_index(command: str, tmp_path: Path) -> None:
    count = moments(command, tmp_path)

    assert [wrong_at(command, tmp_path, at) for at in (count // 3, count // 2, count - count // 6)] == [[], [], []]


def test_a_topic_that_is_deleted_while_its_queues_are_read_is_told(tmp_path: Path) -> None:
    store = copy_of("mixed-533-clean", tmp_path)
    gone = sorted((store / "consumequeue" / "OrderEvents").glob("*/*"))

    with taking(store, gone, 8):
        ran = run("dump", "consumequeue", "-s", store)

    assert ran.status == Status.OK
    assert "OrderEvents/0 was deleted while the store was being read" in ran.remarks
    assert {row["topic"] for row in ran.rows} >= {"pay_events", "log-x"}


def test_where_no_name_is_near_those_that_people_made_are_told() -> None:
    names = ["%DLQ%billing", "%RETRY%billing", "BenchmarkTest", "Orders"]
    with pytest.raises(NotFoundError, match=r"similar: Orders$"):
        matching(["Zzz"], names, "topic")
    with pytest.raises(NotFoundError, match=r"similar: Orders$"):
        check_known("Zzz", names, "topic")


def test_a_byte_order_mark_is_named_as_what_spoils_the_first_setting(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_bytes(b"\xef\xbb\xbfmappedFileSizeCommitLog=65536\r\nmappedFileSizeConsumeQueue=400\r\n")

    ran = run("info", "-s", str(golden_store("mixed-533-clean")), "-c", str(conf))

    assert f"{conf}: the byte order mark at its start makes mappedFileSizeCommitLog a setting" in ran.remarks
    assert "did you mean" not in ran.remarks
