"""``doctor`` names the cause that was planted first, and finds nothing in the way on a sound store."""

import contextlib
import dataclasses
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mqtool.engine.repair.checks import CHECKS
from mqtool.engine.repair.doctor.case import Case, Effect, open_store
from mqtool.engine.repair.doctor.diagnosis import CAUSES, SEVERITIES, Diagnosis, examine
from mqtool.engine.repair.doctor.pages import PAGES
from mqtool.engine.repair.doctor.surroundings import FileSystem, User, look_around
from mqtool.engine.repair.findings import Severity
from mqtool.engine.store.paths import StoreConfig
from mqtool.errors import Status
from mqtool.formats import config_tables
from mqtool.formats import timer as timer_layout
from mqtool.formats.settings import parse_settings
from tests.commands.running import run
from tests.damage import DamageCase, apply_ops, cases
from tests.golden import GOLDEN_NAMES, copy_of, manifest

EMPTY_DISK = FileSystem(size=1 << 40, free=1 << 39, usable=1 << 39, free_inodes=1 << 20)
IS_ROOT = os.geteuid() == 0
NOBODY = 65534
DAY_MS = 86_400_000

HOLDER = """
import fcntl, os, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX, 1, 0, os.SEEK_SET)
print("held", flush=True)
sys.stdin.read()
"""


@dataclasses.dataclass
class Patient:
    """A copy of a golden store, the broker's settings, and what lies around."""

    store: Path
    settings: dict[str, str]
    with_config: bool = True  # whether doctor is given the broker's configuration
    version: str | None = None
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)  # of the surroundings
    children: contextlib.ExitStack = dataclasses.field(default_factory=contextlib.ExitStack)

    @property
    def now(self) -> int:
        """An hour after the last message."""
        last: int = manifest(self.store.name)["messages"][-1]["store_timestamp"]
        return last + 3_600_000

    @property
    def log(self) -> Path:
        return self.store / "commitlog"

    @property
    def segments(self) -> list[Path]:
        return sorted(self.log.iterdir())

    def queue(self, topic: str, queue_id: int = 0) -> Path:
        return self.store / "consumequeue" / topic / str(queue_id)

    def a_queue(self, least: int = 1) -> Path:
        """Return the first queue of a topic of users that has so many files."""
        return next(
            queue
            for queue in sorted((self.store / "consumequeue").glob("*/*"))
            if len(list(queue.iterdir())) >= least and not queue.parent.name.startswith(("RMQ_", "SCHEDULE", "%"))
        )

    def edit(self, name: str, change: Callable[[Any], None]) -> None:
        path = self.store / "config" / name
        table = config_tables.parse_table(path.read_bytes())
        change(table)
        path.write_bytes(config_tables.build_table(table, config_tables.Dialect.FASTJSON_1))

    def spawn(self, *command: str) -> "subprocess.Popen[bytes]":
        """Start a process that ends with the patient's treatment, and wait until it says that it is there."""
        process = self.children.enter_context(
            subprocess.Popen([sys.executable, "-c", *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        )
        assert process.stdin
        assert process.stdout
        self.children.callback(process.stdin.close)
        assert process.stdout.readline()
        return process

    def case(self) -> Case:
        file = self.store.parent / "broker.conf"
        file.write_text("".join(f"{key}={value}\n" for key, value in self.settings.items()))
        settings = parse_settings(file.read_text()) if self.with_config else {}
        reader = open_store(self.store, StoreConfig(settings))
        around = look_around([reader.root, *reader.paths.commit_log])
        around = dataclasses.replace(around, now=self.now, disks=dict.fromkeys(around.disks, EMPTY_DISK))
        around = dataclasses.replace(around, **self.changes)
        return Case(reader.root, settings, file if self.with_config else None, around, reader, self.version)

    def diagnose(self) -> list[Diagnosis]:
        return examine(self.case())[1]


def settings_of(name: str) -> dict[str, str]:
    settings = dict(manifest(name)["config"])
    if folders := settings.pop("commitLogPaths", None):
        settings["storePathCommitLog"] = ",".join(folders)
    return {key: str(value) for key, value in settings.items()}


# What is planted


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def message(number: int, name: str) -> dict[str, Any]:
    found: dict[str, Any] = manifest(name)["messages"][number]
    return found


def place(patient: Patient, offset: int) -> tuple[Path, int]:
    size = patient.segments[0].stat().st_size
    return next(path for path in patient.segments if int(path.name) <= offset < int(path.name) + size), offset % size


def give_to_nobody(patient: Patient) -> None:
    """Let a user who is not root own the store, where that can be: to root everything is permitted."""
    if IS_ROOT:
        for path in [patient.store, *patient.store.rglob("*")]:
            os.chown(path, NOBODY, NOBODY)


def unreadable_segment(patient: Patient) -> None:
    give_to_nobody(patient)
    patient.segments[0].chmod(0)


def unwritable_folder(patient: Patient) -> None:
    give_to_nobody(patient)
    (patient.store / "config").chmod(0o555)


def files_of_root(patient: Patient) -> None:
    give_to_nobody(patient)
    os.chown(patient.store / "checkpoint", 0, 0)
    for path in patient.a_queue().iterdir():
        os.chown(path, 0, 0)


def held_lock(patient: Patient) -> None:
    patient.spawn(HOLDER, str(patient.store / "lock"))


def noted_broker(patient: Patient) -> None:
    sleeper = "import sys; print('up', flush=True); sys.stdin.read()"
    broker = patient.spawn(sleeper, "org.apache.rocketmq.broker.BrokerStartup")
    (patient.store / "abort").write_text(str(broker.pid))


def disk(**facts: Any) -> Callable[[Patient], None]:
    def plant(patient: Patient) -> None:
        patient.changes["disks"] = {patient.store: dataclasses.replace(EMPTY_DISK, **facts)}

    return plant


def setting(**settings: str | None) -> Callable[[Patient], None]:
    def plant(patient: Patient) -> None:
        for key, value in settings.items():
            if value is None:
                del patient.settings[key]
            else:
                patient.settings[key] = value

    return plant


def new_log_folder(patient: Patient) -> None:
    (patient.store.parent / "newlog").mkdir()
    patient.settings["storePathCommitLog"] = str(patient.store.parent / "newlog")


def no_segments(patient: Patient) -> None:
    for path in patient.segments:
        path.unlink()


def renamed_log(patient: Patient) -> None:
    patient.log.rename(patient.store / "log.old")


def file_at(where: str, content: bytes = b"x") -> Callable[[Patient], None]:
    def plant(patient: Patient) -> None:
        (patient.store / where).write_bytes(content)

    return plant


def segment_copy(patient: Patient) -> None:
    shutil.copy(patient.segments[0], patient.log / "00000000000000000000.copy")


def folder_in_log(patient: Patient) -> None:
    (patient.log / "backup").mkdir()


def unpadded_name(patient: Patient) -> None:
    last = patient.segments[-1]
    last.rename(last.with_name(str(int(last.name))))


def empty_segment(patient: Patient) -> None:
    last = patient.segments[-1]
    (patient.log / f"{int(last.name) + last.stat().st_size:020}").touch()


def short_segment(patient: Patient) -> None:
    os.truncate(patient.segments[1], 40_000)


def stray_in_queue(patient: Patient) -> None:
    (patient.a_queue() / ".swp").write_bytes(b"x")


def short_queue_file(patient: Patient) -> None:
    os.truncate(min(patient.a_queue().iterdir()), 100)


def no_queue_type(patient: Patient) -> None:
    def change(table: Any) -> None:
        for topic in table["topicConfigTable"].values():
            topic.get("attributes", {}).pop("queue.type", None)

    patient.edit("topics.json", change)


def short_wheel(patient: Patient) -> None:
    os.truncate(patient.store / "timerwheel", timer_layout.WHEEL_SIZE // 2)


def huge_size(patient: Patient) -> None:
    path, at = place(patient, message(200, "mixed-497-clean")["phy"])
    overwrite(path, at, b"\x7f\xff\xff\xff")


def both_tables_bad(patient: Patient) -> None:
    (patient.store / "config" / "topics.json").write_bytes(b'{"topicConfigTable":{')
    (patient.store / "config" / "topics.json.bak").write_bytes(b"{")


def bad_table_without_backup(patient: Patient) -> None:
    (patient.store / "config" / "subscriptionGroup.json").write_bytes(b'{"subscriptionGroupTable":{')
    (patient.store / "config" / "subscriptionGroup.json.bak").unlink()


def unreadable_database(patient: Patient) -> None:
    for path in (patient.store / "consumequeue").iterdir():
        path.write_bytes(b"\xaa" * path.stat().st_size)


def empty_table(patient: Patient) -> None:
    os.truncate(patient.store / "config" / "topics.json", 0)


def missing_segment(patient: Patient) -> None:
    patient.segments[2].unlink()


def misnamed_segment(patient: Patient) -> None:
    last = patient.segments[-1]
    last.rename(last.with_name(f"{int(last.name) + 1000:020}"))


def changed_body(patient: Patient) -> None:
    one = message(250, "mixed-533-clean")
    path, at = place(patient, one["phy"])
    data = bytearray(path.read_bytes())
    data[at + 100] ^= 1
    path.write_bytes(data)


def lost_page(patient: Patient) -> None:
    path, at = place(patient, message(240, "mixed-533-clean")["phy"])
    overwrite(path, at, bytes(600))


def torn_end(patient: Patient) -> None:
    one = message(-1, "mixed-533-kill")
    path, at = place(patient, one["phy"])
    overwrite(path, at + one["size"] // 2, bytes(one["size"] - one["size"] // 2))


def lost_end(patient: Patient) -> None:
    patient.segments[-1].unlink()


def no_queues(patient: Patient) -> None:
    shutil.rmtree(patient.store / "consumequeue")


def one_queue_gone(patient: Patient) -> None:
    newest = manifest("mixed-533-clean")["messages"][-1]
    shutil.rmtree(patient.queue(newest["topic"], newest["queue_id"]))


def read_queue_gone(patient: Patient) -> None:
    shutil.rmtree(read_queue(patient))


def read_queue(patient: Patient) -> Path:
    """Return a queue that consumers have read from."""
    table = config_tables.parse_table((patient.store / "config" / "consumerOffset.json").read_bytes())
    for (topic, _, queue_id), offset in config_tables.consumer_offsets(table).items():
        if offset and not topic.startswith("RMQ_SYS") and patient.queue(topic, queue_id).exists():
            return patient.queue(topic, queue_id)
    raise AssertionError("nobody has read anything")


def queue_file_gone(patient: Patient) -> None:
    sorted(patient.a_queue(3).iterdir())[1].unlink()


def misnamed_queue_file(patient: Patient) -> None:
    last = max(patient.a_queue(2).iterdir())
    last.rename(last.with_name(f"{int(last.name) + 40:020}"))


def folder_in_index(patient: Patient) -> None:
    (patient.store / "index" / "20260101000000000").mkdir()


def torn_unit(patient: Patient) -> None:
    (case,) = (case for case in cases() if case.name == "mixed-533-clean/cq-torn-last-unit")
    apply_ops(patient.store, case.ops)


def taken_place(patient: Patient) -> None:
    """The last message but some of a queue says that it is one that came long before."""
    overwrite(patient.segments[-1], 53_390, (28).to_bytes(8, "big"))


def record_from_elsewhere(patient: Patient) -> None:
    one = message(-3, "mixed-533-clean")
    path, at = place(patient, one["phy"])
    overwrite(path, at + 28, (one["phy"] + 8192).to_bytes(8))


def properties_damaged(patient: Patient) -> None:
    one = message(-3, "mixed-533-clean")
    path, at = place(patient, one["phy"])
    overwrite(path, at + one["size"] - 30, bytes(30))


def topic_damaged(patient: Patient) -> None:
    one = message(-3, "mixed-533-clean")
    path, at = place(patient, one["phy"])
    overwrite(path, path.read_bytes().index(one["topic"].encode(), at + one["body_len"]) + 2, b"\0")


def stale_records(patient: Patient) -> None:
    (case,) = (case for case in cases() if case.name == "mixed-497-clean/stale-records-after-end")
    apply_ops(patient.store, case.ops)


def last_unit_gone(patient: Patient) -> None:
    newest = manifest("mixed-533-clean")["messages"][-1]
    size = 400
    name, at = divmod(newest["queue_offset"] * 20, size)
    overwrite(patient.queue(newest["topic"], newest["queue_id"]) / f"{name * size:020}", at, bytes(20))


def checkpoint_ahead(patient: Patient) -> None:
    last = manifest("mixed-533-clean")["messages"][-1]["store_timestamp"]
    overwrite(patient.store / "checkpoint", 0, (last + DAY_MS).to_bytes(8) * 3)


def short_checkpoint(patient: Patient) -> None:
    os.truncate(patient.store / "checkpoint", 24)


def no_checkpoint(patient: Patient) -> None:
    (patient.store / "checkpoint").unlink()


def topics(change: Callable[[dict[str, Any]], None]) -> Callable[[Patient], None]:
    """Change the settings of the topic of the first queue."""

    def plant(patient: Patient) -> None:
        topic = patient.a_queue().parent.name
        patient.edit("topics.json", lambda table: change(table["topicConfigTable"][topic]))

    return plant


def unknown_topic(patient: Patient) -> None:
    topic = patient.a_queue().parent.name
    patient.edit("topics.json", lambda table: table["topicConfigTable"].pop(topic))
    (patient.store / "config" / "topics.json.bak").unlink()


def disabled_group(patient: Patient) -> None:
    def change(table: Any) -> None:
        name = next(name for name in table["subscriptionGroupTable"] if not name.startswith(("CID_", "TOOLS", "SELF")))
        table["subscriptionGroupTable"][name]["consumeEnable"] = False

    patient.edit("subscriptionGroup.json", change)


def offset_ahead(patient: Patient) -> None:
    queue = read_queue(patient)

    def change(table: Any) -> None:
        for name, offsets in table["offsetTable"].items():
            if name.startswith(f"{queue.parent.name}@"):
                offsets[int(queue.name)] = 9999

    patient.edit("consumerOffset.json", change)


def offset_expired(patient: Patient) -> None:
    """Let retention take the first segment and the queue files that tell only of it, while a group has read nothing."""
    first = patient.segments[0]
    end = first.stat().st_size
    first.unlink()
    left = {}
    for queue in (patient.store / "consumequeue").glob("*/*"):
        files = sorted(queue.iterdir())
        for path in files[:-1]:
            if int.from_bytes(path.read_bytes()[-20:-12]) >= end:
                break
            path.unlink()
            left[queue.parent.name] = int(queue.name)
    topic, queue_id = min(left.items())
    patient.edit("consumerOffset.json", lambda table: table["offsetTable"].update({f"{topic}@late": {queue_id: 0}}))


def no_delay_offsets(patient: Patient) -> None:
    for path in (patient.store / "config").glob("delayOffset.json*"):
        path.unlink()


def delay_offset_ahead(patient: Patient) -> None:
    patient.edit("delayOffset.json", lambda table: table["offsetTable"].update({18: 5000}))


def old_half_message(patient: Patient) -> None:
    """Let the half message that was pending when the broker stopped be two days old."""
    halves = [one for one in manifest("txn-533-clean")["messages"] if one["topic"] == "RMQ_SYS_TRANS_HALF_TOPIC"]
    one = halves[-2]  # behind it lies another
    path, at = place(patient, one["phy"])
    overwrite(path, at + 56, (one["store_timestamp"] - 2 * DAY_MS).to_bytes(8))


def no_wheel(patient: Patient) -> None:
    (patient.store / "timerwheel").unlink()


def wrong_chain(patient: Patient) -> None:
    overwrite(min((patient.store / "timerlog").iterdir()), 36, b"\x7f" * 4)


def no_consumer_offsets(patient: Patient) -> None:
    for path in (patient.store / "config").glob("consumerOffset.json*"):
        path.unlink()


def message_of_tomorrow(patient: Patient) -> None:
    one = message(-1, "mixed-533-clean")
    path, at = place(patient, one["phy"])
    overwrite(path, at + 56, (patient.now + DAY_MS).to_bytes(8))


def long_index_file(patient: Patient) -> None:
    path = min((patient.store / "index").iterdir())
    os.truncate(path, path.stat().st_size + 8)


@dataclasses.dataclass(frozen=True)
class Plant:
    """What is done to which store, and the cause that must be named first."""

    code: str
    store: str
    change: Callable[[Patient], None]
    effect: Effect
    version: str | None = None
    with_config: bool = True


STOPS, LOSES, HIDES, HINDERS, _, _ = Effect

PLANTS = {
    "a segment that its owner may not read": Plant("NOT-PERMITTED", "mixed-533-clean", unreadable_segment, STOPS),
    "a folder that nobody may write to": Plant("NOT-PERMITTED", "mixed-533-clean", unwritable_folder, STOPS),
    "the lock is held": Plant("STORE-IN-USE", "mixed-533-clean", held_lock, STOPS),
    "abort notes a broker that lives": Plant("STORE-TWO-BROKERS", "mixed-533-kill", noted_broker, LOSES),
    "a disk above 90 percent": Plant("DISK-FULL", "mixed-533-clean", disk(free=80 << 30, usable=80 << 30), LOSES),
    "a disk above 85 percent": Plant("DISK-FULL", "mixed-533-clean", disk(free=140 << 30, usable=140 << 30), LOSES),
    "a disk without a byte": Plant("DISK-FULL", "mixed-533-clean", disk(free=0, usable=0), STOPS),
    "a disk without an inode": Plant("DISK-FULL", "mixed-533-clean", disk(free_inodes=0), STOPS),
    "a disk mounted read-only": Plant("DISK-FULL", "mixed-533-clean", disk(read_only=True), STOPS),
    "another segment size": Plant(
        "SETTING-FILE-SIZE", "mixed-533-clean", setting(mappedFileSizeCommitLog="1048576"), STOPS
    ),
    "no segment size": Plant("SETTING-FILE-SIZE", "mixed-533-clean", setting(mappedFileSizeCommitLog=None), STOPS),
    "another size of queue files": Plant(
        "SETTING-FILE-SIZE", "mixed-533-clean", setting(mappedFileSizeConsumeQueue="6000000"), STOPS
    ),
    "another number of index entries": Plant(
        "SETTING-FILE-SIZE", "mixed-533-clean", setting(maxIndexNum="20000000"), HINDERS
    ),
    "a segment size with a unit": Plant(
        "SETTING-IGNORED", "mixed-533-clean", setting(mappedFileSizeCommitLog="64K"), STOPS
    ),
    "a slave with number 0": Plant(
        "SETTING-SLAVE-ID", "mixed-533-clean", setting(brokerRole="SLAVE", brokerId="0"), STOPS
    ),
    "a log path that is not there": Plant(
        "SETTING-LOG-PATH", "mixed-533-clean", setting(storePathCommitLog="/nowhere/commitlog"), LOSES
    ),
    "a log path that is empty": Plant("SETTING-LOG-PATH", "mixed-533-clean", new_log_folder, LOSES),
    "no paths for a log in several folders": Plant(
        "SETTING-LOG-PATH", "multipath-533-clean", setting(storePathCommitLog=None), LOSES
    ),
    "DLedger switched off": Plant(
        "SETTING-DLEDGER", "dledger-497-clean", setting(enableDLegerCommitLog="false"), LOSES
    ),
    "forced CRC on a log without": Plant(
        "SETTING-FORCED-CRC", "mixed-533-clean", setting(forceVerifyPropCRC="true"), LOSES
    ),
    "another store in the settings": Plant(
        "SETTING-STORE-PATH", "mixed-533-clean", setting(storePathRootDir="/data/store"), HIDES
    ),
    "no segment left": Plant("LOG-MISSING", "mixed-533-clean", no_segments, LOSES, with_config=False),
    "a renamed log": Plant("LOG-MISSING", "mixed-533-clean", renamed_log, LOSES, with_config=False),
    "a stray file among segments": Plant("LOG-STRAY", "mixed-533-clean", file_at("commitlog/.DS_Store"), STOPS),
    "a segment's copy with a name that is no number": Plant("LOG-STRAY", "mixed-533-clean", segment_copy, STOPS),
    "a folder among segments": Plant("LOG-STRAY", "mixed-497-clean", folder_in_log, STOPS),
    "a segment's name that is not padded": Plant("LOG-STRAY", "mixed-533-clean", unpadded_name, LOSES),
    "an empty last segment": Plant("EMPTY-FILE", "mixed-497-clean", empty_segment, STOPS),
    "a segment cut short": Plant("LOG-FILE-SIZE", "mixed-533-clean", short_segment, STOPS),
    "a stray file in a queue": Plant("QUEUE-STRAY", "mixed-533-clean", stray_in_queue, STOPS),
    "a queue file cut short": Plant("QUEUE-FILE-SIZE", "mixed-533-clean", short_queue_file, STOPS),
    "a batch topic that is no longer one": Plant("QUEUE-TYPE", "batchcq-533-clean", no_queue_type, STOPS),
    "half a timer wheel": Plant("TIMER-FILE-SIZE", "timer-533-clean", short_wheel, STOPS),
    "a record of 2 GiB": Plant("LOG-OUT-OF-MEMORY", "mixed-497-clean", huge_size, STOPS, version="4.9"),
    "a bad table with a bad backup": Plant("CONFIG-UNREADABLE", "mixed-533-clean", both_tables_bad, STOPS),
    "a bad table without a backup": Plant("CONFIG-UNREADABLE", "retry-533-clean", bad_table_without_backup, LOSES),
    "a database of queues that is overwritten": Plant(
        "QUEUE-ROCKSDB-DAMAGED", "rocksdb-533-clean", unreadable_database, STOPS
    ),
    "an empty table with a good backup": Plant("CONFIG-FROM-BACKUP", "mixed-533-clean", empty_table, HINDERS),
    "records of the second kind for 4.9": Plant(
        "LOG-SECOND-KIND", "retry-533-clean", lambda _: None, LOSES, version="4.9"
    ),
    "batch queues for 4.9": Plant("BATCH-QUEUES", "batchcq-533-clean", lambda _: None, HIDES, version="4.9"),
    "queues in RocksDB for 4.9": Plant("SETTING-ROCKSDB", "rocksdb-533-clean", lambda _: None, HIDES, version="4.9"),
    "a missing segment": Plant("LOG-GAP", "mixed-533-clean", missing_segment, LOSES),
    "a segment under another name": Plant("LOG-NAME", "mixed-533-kill", misnamed_segment, LOSES),
    "a changed byte in a body": Plant("LOG-DAMAGED", "mixed-533-clean", changed_body, LOSES),
    "a page of zeros": Plant("LOG-DAMAGED", "mixed-533-clean", lost_page, LOSES),
    "a torn last record": Plant("LOG-TORN", "mixed-533-kill", torn_end, LOSES),
    "the last segment lost": Plant("QUEUE-BEYOND", "mixed-533-clean", lost_end, LOSES),
    "RocksDB queues with the default store": Plant(
        "SETTING-ROCKSDB", "rocksdb-533-clean", setting(storeType=None), HIDES
    ),
    "a broker closed for reading": Plant("SETTING-PERMISSION", "mixed-533-clean", setting(brokerPermission="2"), HIDES),
    "the timer off": Plant("SETTING-TIMER", "timer-533-clean", setting(timerWheelEnable="false"), HIDES),
    "no folder of queues": Plant("QUEUES-LOST", "many-533-clean", no_queues, HIDES),
    "a queue gone": Plant("QUEUES-LOST", "mixed-533-clean", one_queue_gone, HIDES),
    "a queue gone that consumers have read": Plant("QUEUES-LOST", "retry-533-clean", read_queue_gone, HIDES),
    "a file of a queue gone": Plant("QUEUE-GAP", "mixed-533-clean", queue_file_gone, HIDES),
    "a file of a queue under another name": Plant("QUEUE-NAME", "mixed-533-clean", misnamed_queue_file, HIDES),
    "a record that says to lie elsewhere": Plant("LOG-POSITION", "mixed-533-clean", record_from_elsewhere, LOSES),
    "a message with another's place in its queue": Plant("LOG-QUEUE-ORDER", "mixed-497-clean", taken_place, LOSES),
    "a topic that none can have": Plant("LOG-TOPIC", "mixed-533-clean", topic_damaged, HIDES),
    "damaged properties": Plant("LOG-PROPERTY-TEXT", "mixed-533-clean", properties_damaged, HIDES),
    "records behind the end of the log": Plant("LOG-STALE", "mixed-497-clean", stale_records, HINDERS),
    "the last unit gone": Plant("QUEUE-MISSING", "mixed-533-clean", last_unit_gone, HIDES),
    "a checkpoint ahead": Plant("CHECKPOINT-AHEAD", "mixed-533-clean", checkpoint_ahead, HIDES),
    "a short checkpoint": Plant("CHECKPOINT-SIZE", "mixed-533-clean", short_checkpoint, HINDERS),
    "no checkpoint": Plant("CHECKPOINT-MISSING", "mixed-533-clean", no_checkpoint, HINDERS),
    "a topic that brokers do not know": Plant("CONFIG-NO-TOPIC", "mixed-533-clean", unknown_topic, HIDES),
    "a topic closed for reading": Plant(
        "TOPIC-PERMISSION", "mixed-533-clean", topics(lambda topic: topic.update(perm=2)), HIDES
    ),
    "a topic closed for writing": Plant(
        "TOPIC-PERMISSION", "mixed-497-clean", topics(lambda topic: topic.update(perm=4)), HIDES
    ),
    "a topic that is read from fewer queues": Plant(
        "TOPIC-QUEUES", "mixed-533-clean", topics(lambda topic: topic.update(readQueueNums=0)), HIDES
    ),
    "a topic with too few queues": Plant(
        "CONFIG-QUEUE-COUNT",
        "mixed-533-clean",
        topics(lambda topic: topic.update(readQueueNums=1, writeQueueNums=1)),
        HIDES,
    ),
    "a group switched off": Plant("GROUP-DISABLED", "retry-533-clean", disabled_group, HIDES),
    "a group ahead of its queue": Plant("CONFIG-OFFSET", "retry-533-clean", offset_ahead, HIDES),
    "a group behind retention": Plant("CONFIG-OFFSET-EXPIRED", "mixed-533-clean", offset_expired, HIDES),
    "delay offsets lost": Plant("DELAY-LOST", "txn-533-clean", no_delay_offsets, HINDERS),
    "a delay offset ahead": Plant("CONFIG-DELAY-OFFSET", "txn-533-clean", delay_offset_ahead, HIDES),
    "a half message of the day before yesterday": Plant("HALF-STUCK", "txn-533-clean", old_half_message, HIDES),
    "no timer wheel": Plant("TIMER-MISSING", "timer-533-clean", no_wheel, HIDES),
    "a damaged unit of the timer": Plant("TIMER-DAMAGED", "timer-533-clean", wrong_chain, HIDES),
    "consumer offsets lost": Plant("OFFSETS-LOST", "retry-533-clean", no_consumer_offsets, HINDERS),
    "consumer offsets lost that nothing shows": Plant("OFFSETS-LOST", "ext-497-kill", no_consumer_offsets, HINDERS),
    "a folder in the index": Plant("START-REFUSED", "mixed-533-clean", folder_in_index, STOPS),
    "a torn last unit of a queue": Plant("START-HIDES", "mixed-533-clean", torn_unit, HIDES),
    "a message of tomorrow": Plant("CLOCK-AHEAD", "mixed-533-clean", message_of_tomorrow, HINDERS),
    "an index file too long": Plant("INDEX-FILE-SIZE", "mixed-533-clean", long_index_file, HINDERS),
}
if IS_ROOT:  # nobody else can give files away
    PLANTS["files that root made"] = Plant("NOT-PERMITTED", "mixed-533-clean", files_of_root, STOPS)


def patient_of(plant: Plant, into: Path) -> Patient:
    return Patient(copy_of(plant.store, into), settings_of(plant.store), plant.with_config, plant.version)


@pytest.mark.parametrize("name", PLANTS)
def test_the_planted_cause_is_named_first(name: str, tmp_path: Path) -> None:
    plant = PLANTS[name]
    patient = patient_of(plant, tmp_path)

    with patient.children:
        plant.change(patient)
        found = patient.diagnose()

    assert [one.code for one in found][:1] == [plant.code]
    assert found[0].effect is plant.effect
    assert found[0].severity is SEVERITIES[plant.effect]
    assert found[0].versions
    assert found[0].seen[0].message
    assert all(shlex.split(command) for command in found[0].next)


@pytest.mark.parametrize("with_config", [False, True])
@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_nothing_stands_in_the_way_on_a_sound_store(name: str, with_config: bool, tmp_path: Path) -> None:
    patient = Patient(copy_of(name, tmp_path), settings_of(name), with_config)

    case = patient.case()
    found = examine(case)[1]

    assert [one for one in found if one.severity is not Severity.NOTE] == []
    assert case.problems == []


CURED = (
    "a folder that nobody may write to",
    "another segment size",
    "no segment size",
    "another number of index entries",
    "a segment size with a unit",
    "a slave with number 0",
    "a log path that is not there",
    "no paths for a log in several folders",
    "DLedger switched off",
    "forced CRC on a log without",
    "another store in the settings",
    "a stray file among segments",
    "a segment's copy with a name that is no number",
    "a segment's name that is not padded",
    "an empty last segment",
    "a stray file in a queue",
    "an empty table with a good backup",
    "RocksDB queues with the default store",
    "a broker closed for reading",
    "the timer off",
)
"""Plants that commands of the system put right, without mqtool or a broker."""


@pytest.mark.parametrize("name", CURED)
def test_the_printed_commands_can_be_pasted_and_cure(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "a folder's name"
    folder.mkdir()
    patient = patient_of(PLANTS[name], folder)
    PLANTS[name].change(patient)
    first = patient.diagnose()[0]

    for command in first.next:
        subprocess.run(command, shell=True, check=True)
    patient.settings = parse_settings((folder / "broker.conf").read_text())

    assert [one.code for one in patient.diagnose() if one.severity is not Severity.NOTE] == []


PROGRAMS = {
    "chmod", "chown", "cp", "df", "fuser", "kill", "mkdir", "mqadmin", "mqtool", "mv", "printf", "ps", "sed",
    "timedatectl", "truncate",
}  # fmt: skip
CHANGING = {"recover", "rebuild"}


@pytest.mark.parametrize("name", PLANTS)
def test_every_printed_command_is_taken_as_it_is_printed(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "a folder's name"
    folder.mkdir()
    patient = patient_of(PLANTS[name], folder)

    with patient.children:
        PLANTS[name].change(patient)
        first = patient.diagnose()[0]

        for number, command in enumerate(first.next):
            subprocess.run(["sh", "-n", "-c", command], check=True)
            words = shlex.split(command)
            assert words[0] in PROGRAMS
            if words[0] == "mqtool":
                is_repair = words[1] in CHANGING and "--into" not in words
                ran = run(*words[1:], *["--dry-run"] * is_repair)
                if is_repair and number == 0:
                    assert "there is nothing to repair" not in ran.remarks
                assert ran.status in (Status.OK, Status.DAMAGE, Status.WARNINGS), (command, ran.remarks)


def test_every_cause_is_explained_with_the_title_and_the_gravity_that_doctor_gives_it() -> None:
    for code, cause in CAUSES.items():
        (row,) = run("explain", code).rows
        if code in PAGES:
            assert (row["title"], row["severity"]) == (cause.title, SEVERITIES[cause.effect])
        else:
            assert row["title"] == CHECKS[code].title
    assert CHECKS.keys().isdisjoint(PAGES)
    assert PAGES.keys() <= CAUSES.keys()


def test_every_cause_that_hits_no_meant_version_is_a_note(tmp_path: Path) -> None:
    patient = Patient(copy_of("mixed-533-clean", tmp_path), settings_of("mixed-533-clean"))
    empty_segment(patient)

    (only,) = (one for one in patient.diagnose() if one.code == "EMPTY-FILE")

    assert (only.severity, only.versions) == (Severity.NOTE, ("4.9",))


def test_a_cut_log_tells_how_many_messages_lie_behind(tmp_path: Path) -> None:
    patient = Patient(copy_of("mixed-533-clean", tmp_path), settings_of("mixed-533-clean"))
    changed_body(patient)

    first = patient.diagnose()[0]

    behind = len(manifest("mixed-533-clean")["messages"]) - 251
    assert f"and with it {behind} sound records after it" in first.seen[0].message


def test_where_a_start_passes_over_damage_and_ends_the_log_further_on_both_are_told(tmp_path: Path) -> None:
    patient = Patient(copy_of("mixed-533-clean", tmp_path), settings_of("mixed-533-clean"), version="5.3")
    messages = [message(number, "mixed-533-clean") for number in range(len(manifest("mixed-533-clean")["messages"]))]
    last = int(patient.segments[-1].name)
    older = next(one for one in messages if last - 65536 < one["phy"] < last and one["body_len"] > 50)
    newer = [one for one in messages if one["body_len"] > 50][-4]
    behind = sum(one["phy"] > newer["phy"] for one in messages)
    for one in (older, newer):
        path, at = place(patient, one["phy"])
        overwrite(path, at + 100, bytes(3))

    starts, (first, *_) = examine(patient.case())

    assert (starts[0].end_offset, starts[0].deleted) == (newer["phy"], behind)
    assert first.code == "LOG-DAMAGED"
    assert [sign.physical_offset for sign in first.seen[:2]] == [newer["phy"], older["phy"]]
    assert f"deletes {behind} sound messages after it" in first.seen[0].message


def test_a_process_with_the_noted_number_that_is_no_broker_is_none(tmp_path: Path) -> None:
    patient = Patient(copy_of("mixed-533-kill", tmp_path), settings_of("mixed-533-kill"))
    (patient.store / "abort").write_text(str(os.getpid()))

    assert [one.code for one in patient.diagnose()] == ["ABORT-FILE"]


def test_a_disk_that_brokers_may_fill_is_no_cause(tmp_path: Path) -> None:
    settings = settings_of("mixed-533-clean") | {"cleanFileForciblyEnable": "false"}
    patient = Patient(copy_of("mixed-533-clean", tmp_path), settings)
    disk(free=140 << 30, usable=140 << 30)(patient)

    assert patient.diagnose() == []


def test_of_several_log_disks_the_emptiest_counts(tmp_path: Path) -> None:
    patient = Patient(copy_of("multipath-533-clean", tmp_path), settings_of("multipath-533-clean"))
    folders = patient.case().around.disks
    full = dataclasses.replace(EMPTY_DISK, free=1 << 30, usable=1 << 30)
    patient.changes["disks"] = dict.fromkeys(folders, EMPTY_DISK) | {patient.store / "commitlog-a": full}

    assert patient.diagnose() == []


@pytest.mark.parametrize(
    ("free", "usable", "ratio"), [(100, 100, 0.0), (50, 50, 0.5), (50, 40, 0.56), (0, 0, 1.0), (99, 99, 0.01)]
)
def test_a_disk_is_as_full_as_brokers_reckon(free: int, usable: int, ratio: float) -> None:
    assert FileSystem(size=100, free=free, usable=usable).used_ratio == ratio


@pytest.mark.parametrize(
    ("mode", "user", "may"),
    [
        (0o400, User(7, 7, "owner"), False),
        (0o600, User(7, 7, "owner"), True),
        (0o066, User(7, 7, "owner"), False),
        (0o060, User(8, 9, "other", frozenset({7})), True),
        (0o606, User(8, 9, "other", frozenset({7})), False),
        (0o606, User(8, 9, "other"), True),
        (0o000, User(0, 0, "root"), True),
    ],
)
def test_rights_are_those_of_the_first_class_that_a_user_belongs_to(mode: int, user: User, may: bool) -> None:
    status = os.stat_result((0o100000 | mode, 1, 1, 1, 7, 7, 0, 0, 0, 0))

    assert user.may(status, 6) is may


@pytest.mark.parametrize("damage", cases(), ids=lambda case: case.name)
def test_it_says_that_a_broker_does_not_start_where_a_real_one_did_not(damage: DamageCase, tmp_path: Path) -> None:
    store = damage.store(tmp_path)
    said = {}
    for version in damage.verdicts:
        patient = Patient(store, settings_of(damage.base), version=version.rpartition(".")[0])
        found = patient.diagnose()
        said[version] = bool(found) and found[0].effect is Effect.STOPS and found[0].severity is Severity.ERROR

    assert said == {version: not verdict.get("load_result") for version, verdict in damage.verdicts.items()}


def test_every_cause_is_planted() -> None:
    planted = {plant.code for plant in PLANTS.values()}
    harmless = {code for code, cause in CAUSES.items() if cause.effect in (Effect.UNSEEN, Effect.NOTHING)}

    assert set(CAUSES) - harmless == planted


def test_the_page_lists_every_cause() -> None:
    page = (Path(__file__).parents[3] / "docs" / "doctor.md").read_text()

    assert [code for code in CAUSES if f"`{code}`" not in page] == []
