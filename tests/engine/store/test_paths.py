"""Where the files of a store lie, and what a broker's configuration tells."""

from pathlib import Path

import pytest

from mqtool.engine.store.paths import StoreConfig, StorePaths
from mqtool.errors import NotFoundError, UsageError
from mqtool.formats.settings import parse_settings
from tests.golden import GOLDEN_NAMES, golden_store, manifest

CONF = """
# a broker
! another remark
brokerName = broker-a
mappedFileSizeCommitLog=65536
 mapedFileSizeConsumeQueue = 400
storePathCommitLog=/a/commitlog,/b/commitlog
empty=
colon: value
space value of it
equals==
"""


def test_a_broker_configuration_is_java_properties() -> None:
    assert parse_settings(CONF) == {
        "brokerName": "broker-a",
        "mappedFileSizeCommitLog": "65536",
        "mapedFileSizeConsumeQueue": "400",
        "storePathCommitLog": "/a/commitlog,/b/commitlog",
        "empty": "",
        "colon": "value",
        "space": "value of it",
        "equals": "=",
    }


def test_what_is_set_by_hand_counts_more_than_the_file(tmp_path: Path) -> None:
    (tmp_path / "broker.conf").write_text("maxIndexNum=250\nmaxHashSlotNum=100\n")

    config = StoreConfig.load(tmp_path / "broker.conf", {"maxIndexNum": "77"})

    assert (config.size("maxIndexNum"), config.size("maxHashSlotNum")) == (77, 100)


def test_a_configuration_that_is_not_there_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"broker\.conf does not exist"):
        StoreConfig.load(tmp_path / "broker.conf", {})


def test_without_a_configuration_nothing_is_told() -> None:
    config = StoreConfig.load(None, {})

    assert config.size("mappedFileSizeCommitLog") is None
    assert config.size("maxIndexNum") is None
    assert config.delay_levels()[:4] == [1000, 5000, 10_000, 30_000]
    assert (len(config.delay_levels()), config.delay_levels()[-1]) == (18, 7_200_000)


@pytest.mark.parametrize(("given", "taken"), [("400", 400), ("401", 420), ("1", 20), ("20", 20)])
def test_a_queue_file_has_room_for_whole_units(given: str, taken: int) -> None:
    assert StoreConfig({"mappedFileSizeConsumeQueue": given}).size("mappedFileSizeConsumeQueue") == taken
    assert StoreConfig({"mappedFileSizeCommitLog": given}).size("mappedFileSizeCommitLog") == int(given)


def test_the_old_spelling_of_a_key_is_known() -> None:
    assert StoreConfig({"mapedFileSizeCommitLog": "4096"}).size("mappedFileSizeCommitLog") == 4096


@pytest.mark.parametrize("value", ["", "0", "000", "-1", "+1", "1.5", "1k", "1 000", "²", "٣", "x", "9" * 30])
def test_what_is_no_size_is_wrong_usage(value: str) -> None:
    with pytest.raises(UsageError, match="is not a size"):
        StoreConfig({"maxIndexNum": value}).size("maxIndexNum")


@pytest.mark.parametrize(
    ("value", "expected"), [("1s 2s", [1000, 2000]), ("1m  3h 1d", [60_000, 10_800_000, 86_400_000])]
)
def test_delay_levels_are_times(value: str, expected: list[int]) -> None:
    assert StoreConfig({"messageDelayLevel": value}).delay_levels() == expected


@pytest.mark.parametrize("value", ["1", "s", "1w", "1s,2s", "-1s"])
def test_what_is_no_time_is_wrong_usage(value: str) -> None:
    with pytest.raises(UsageError, match="is not a duration"):
        StoreConfig({"messageDelayLevel": value}).delay_levels()


@pytest.mark.parametrize(
    ("value", "is_set"), [("true", True), ("TRUE", True), ("false", False), ("yes", False), ("", False)]
)
def test_a_flag_is_set_when_it_is_true(value: str, is_set: bool) -> None:
    assert StoreConfig({"enableDLegerCommitLog": value}).flag("enableDLegerCommitLog") == is_set
    assert not StoreConfig().flag("enableDLegerCommitLog")


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_the_commit_log_of_every_golden_store_is_found(name: str) -> None:
    paths = StorePaths(golden_store(name), StoreConfig())

    folders = [paths.relative(folder) for folder in paths.commit_log]

    expected = manifest(name)["config"].get("commitLogPaths", ["commitlog"])
    assert folders == (["dledger-n0/data"] if name.startswith("dledger") else expected)
    assert bool(paths.remarks) == (folders != ["commitlog"])
    assert paths.checkpoint.is_file()


def segments(folder: Path, *starts: int) -> Path:
    folder.mkdir(parents=True)
    for start in starts:
        (folder / f"{start:020}").touch()
    return folder


def test_the_folders_of_the_log_are_as_the_configuration_tells(tmp_path: Path) -> None:
    first, second = segments(tmp_path / "a/log", 0), segments(tmp_path / "b/log", 1024)
    frozen = segments(tmp_path / "frozen", 2048)
    config = StoreConfig({"storePathCommitLog": f"a/log,{second}", "readOnlyCommitLogStorePaths": str(frozen)})

    assert StorePaths(tmp_path, config).commit_log == [first, second, frozen]


def test_a_folder_that_the_configuration_tells_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=r"gone \(storePathCommitLog\) is not a directory"):
        StorePaths(tmp_path, StoreConfig({"storePathCommitLog": "gone"}))


def test_folders_of_the_log_that_nobody_tells_are_taken_with_a_remark(tmp_path: Path) -> None:
    expected = [segments(tmp_path / "commitlog-1", 0), segments(tmp_path / "commitlog-2", 1024)]
    (tmp_path / "commitlog-empty").mkdir()
    (tmp_path / "checkpoint").touch()

    paths = StorePaths(tmp_path, StoreConfig())

    assert paths.commit_log == expected
    assert paths.remarks == [
        "assuming that the commit log is in commitlog-1, commitlog-2 (inferred, storePathCommitLog is not given)"
    ]


@pytest.mark.parametrize("part", ["commitlog", "consumequeue", "index", "checkpoint", "config/topics.json"])
def test_any_part_of_a_store_makes_one(tmp_path: Path, part: str) -> None:
    (tmp_path / part).mkdir(parents=True)

    assert StorePaths(tmp_path, StoreConfig()).root == tmp_path


def test_what_is_no_store_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "file.txt").touch()
    (tmp_path / "config").mkdir()

    with pytest.raises(NotFoundError, match="is not a RocketMQ store"):
        StorePaths(tmp_path, StoreConfig())
    with pytest.raises(NotFoundError, match="is not a directory"):
        StorePaths(tmp_path / "gone", StoreConfig())


def test_a_single_file_is_the_log(tmp_path: Path) -> None:
    folder = segments(tmp_path / "commitlog", 0, 1024)

    paths = StorePaths(folder / f"{1024:020}", StoreConfig())

    assert (paths.single, paths.commit_log, paths.root) == (folder / f"{1024:020}", [folder], folder)


def test_findings_name_files_relative_to_the_store(tmp_path: Path) -> None:
    paths = StorePaths(segments(tmp_path / "store" / "commitlog").parent, StoreConfig())

    assert paths.relative(paths.config / "topics.json") == "config/topics.json"
    assert paths.relative(Path("/elsewhere/commitlog/0")) == "/elsewhere/commitlog/0"
