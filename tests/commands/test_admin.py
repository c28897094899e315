"""``mqtool topic``, ``group`` and ``offset``: what they show and change, on a broker and in its store."""

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import mqtool
from mqtool.engine.broker.settings import BrokerSettings
from mqtool.engine.cluster import Cluster
from mqtool.engine.remoting.client import RemotingClient
from mqtool.engine.server_configs import BrokerConfig, NameServerConfig
from mqtool.errors import Status
from mqtool.formats.bodies import ConsumerData, Heartbeat, Subscription, build_heartbeat
from mqtool.formats.codes import PullSysFlag, RequestCode, ResponseCode
from mqtool.formats.headers import Pull, UpdateConsumerOffset, build_header
from mqtool.formats.remoting import RemotingCommand
from tests.commands.running import Ran, as_options, run
from tests.commands.test_serve import send, serving_both
from tests.damage import snapshot
from tests.engine.remoting.test_server import on_a_loop
from tests.golden import KEEPS_ALL, copy_of, golden_store, manifest

STORE = "retry-533-clean"  # has groups and offsets
ON_ORDERS = ("--group", "billing", "--topic", "Orders")


@contextlib.asynccontextmanager
async def running(store: Path, *, server_side: bool = True) -> AsyncIterator[tuple[str, str]]:
    """Run a name server and a broker with ten messages in queue 0 of ``Orders``, and give their addresses."""
    settings, _ = BrokerSettings().updated({"useServerSideResetOffset": str(server_side).lower()})
    async with Cluster(NameServerConfig(), [BrokerConfig(store, settings=settings)]) as cluster:
        [address] = cluster.broker_addresses
        client = RemotingClient([address])
        for number in range(10):
            assert (await client.invoke(send(str(number)))).code == 0
        await client.close()
        yield cluster.name_server_address, address


def settings_of(name: str) -> list[str]:
    """Return the sizes of a golden store's files as options."""
    return as_options({key: value for key, value in manifest(name)["config"].items() if key.startswith("m")})


async def ask(*arguments: object) -> Ran:
    return await asyncio.to_thread(run, *arguments)


async def join(client: RemotingClient, *offsets: int) -> None:
    """Become the consumer of ``Orders`` in the group ``billing``, which has read that far."""
    wants = (Subscription("Orders", "*", version=1),)
    consumer = ConsumerData("billing", "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET", wants)
    heartbeat = build_heartbeat(Heartbeat("me@1", consumers=(consumer,)))
    assert (await client.invoke(RemotingCommand(RequestCode.HEART_BEAT, body=heartbeat))).code == 0
    for queue_id, offset in enumerate(offsets):
        fields = build_header(UpdateConsumerOffset("billing", "Orders", queue_id, offset))
        answer = await client.invoke(RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, ext_fields=fields))
        assert answer.code == 0


# Shown


@on_a_loop
async def test_a_group_is_shown_with_its_members_and_how_far_they_are(tmp_path: Path) -> None:
    async with running(tmp_path) as (name_server, broker):
        client = RemotingClient([broker])
        await join(client, 4, 0)
        async with mqtool.aio.Producer("shop", name_server) as producer:
            for _ in range(5):
                await producer.send(
                    mqtool.ProducerMessage("Orders", b"x"), mqtool.MessageQueue("Orders", "broker-a", 3)
                )
        listed = (await ask("group", "list", "billing", "-n", name_server)).rows
        shown = (await ask("group", "show", "billing", "-n", name_server)).rows
        offsets = (await ask("offset", "list", "--group", "b*", "-n", name_server)).rows
        await client.close()
        alone = await ask("group", "show", "billing", "-n", name_server)

    assert [(row["group"], row["members"], row["lag"]) for row in listed] == [("billing", 1, 11)]
    by_kind = {kind: [row for row in shown if row["kind"] == kind] for kind in ("member", "subscription", "queue")}
    members = [(row["client_id"], row["language"], row["version"]) for row in by_kind["member"]]
    assert members == [("me@1", "PYTHON", "V4_9_8")]
    assert [(row["topic"], row["expression"]) for row in by_kind["subscription"]] == [("Orders", "*")]
    queues = [(row["queue_id"], row["consumer_offset"], row["max_offset"], row["lag"]) for row in by_kind["queue"]]
    # Nothing was committed of two queues; what is in them waits all the same.
    assert queues == [(0, 4, 10, 6), (1, 0, 0, 0), (2, None, 0, 0), (3, None, 5, 5)]
    assert [(row["queue_id"], row["consumer_offset"]) for row in offsets] == [(0, 4), (1, 0), (2, None), (3, None)]
    assert {row["kind"] for row in alone.rows} == {"group", "queue"}
    assert "no consumer of the group is online" in alone.remarks


def test_a_broker_and_its_store_show_the_same(tmp_path: Path) -> None:
    commands = [("topic", "list"), ("topic", "show", "*etr*"), ("group", "list"), ("offset", "list")]
    store = copy_of(STORE, tmp_path)
    with serving_both(store, *settings_of(STORE), *as_options(KEEPS_ALL)) as (process, name_server, _):
        online = [run(*command, "-n", name_server).rows for command in commands]
        process.terminate()
        process.wait(timeout=60)
    offline = [run(*command, "-s", store).rows for command in commands]

    for ours, stored in zip(online, offline, strict=True):
        # The broker has topics and groups of its own that are in no file until something changes.
        known = [{**row, "broker_name": None, "members": None} for row in ours]
        kept = [{**row, "members": None} for row in stored]
        assert kept
        assert [row for row in kept if row not in known] == []


def test_what_a_broker_makes_for_itself_is_listed_last() -> None:
    topics = [row["topic"] for row in run("topic", "list", "-s", golden_store(STORE)).rows]
    groups = [row["group"] for row in run("group", "list", "-s", golden_store(STORE)).rows]

    assert topics.index("Retries") < topics.index("broker-a") < topics.index("BenchmarkTest")
    assert groups.index("GID_retry_all") < groups.index("CID_ONS-HTTP-PROXY")


@pytest.mark.parametrize("what", ["topic", "group", "offset"])
def test_of_a_log_alone_no_tables_are_looked_at_which_is_told(what: str) -> None:
    ran = run(what, "list", "-s", golden_store(STORE) / "commitlog")

    assert (ran.rows, "as a commit log without its store" in ran.remarks) == ([], True)


def test_a_pattern_that_matches_nothing_lists_near_names() -> None:
    for command in (("topic", "list", "x*"), ("topic", "show", "x*"), ("group", "list", "x"), ("group", "show", "x")):
        ran = run(*command, "-s", golden_store(STORE))

        assert (ran.status, ran.output) == (Status.NO_INPUT, "")
        assert "similar" in ran.remarks


# Changed on a broker


@on_a_loop
async def test_a_topic_is_made_changed_and_deleted(tmp_path: Path) -> None:
    async with running(tmp_path) as (name_server, _):
        wire = ("-n", name_server)
        unanswered = await ask("topic", "create", "New", *wire)
        dry = await ask("topic", "create", "New", "--dry-run", *wire)
        none = await ask("topic", "list", "New", *wire)
        made = await ask("topic", "create", "New", "--queues", 3, "--yes", *wire)
        again = await ask("topic", "create", "New", "--queues", 3, "--yes", *wire)
        narrowed = await ask("topic", "create", "New", "--perm", "r", "--yes", *wire)
        [changed] = (await ask("topic", "list", "New", *wire)).rows
        refused = await ask("send", "--topic", "New", "x", *wire)
        one = await ask("topic", "create", "Small", "--queues", 1, "--yes", *wire)
        small = await ask("topic", "delete", "Small", "--dry-run", *wire)
        deleted = await ask("topic", "delete", "New", "--yes", *wire)
        gone = await ask("topic", "delete", "New", "--yes", *wire)

    assert (unanswered.status, dry.status, none.status) == (Status.DAMAGE, Status.DAMAGE, Status.NO_INPUT)
    assert [(row["what"], row["topic"], row["broker_name"]) for row in made.rows] == [("create", "New", "broker-a")]
    assert (again.status, again.rows) == (Status.OK, [])
    assert [row["what"] for row in narrowed.rows] == ["replace"]
    assert (changed["read_queue_count"], changed["write_queue_count"], changed["perm"]) == (3, 3, 4)
    assert refused.status == Status.NO_INPUT  # no queue may be written to
    assert [row["reason"] for row in (*made.rows, *one.rows, *small.rows, *deleted.rows)] == [
        "3 queues, perm 6",
        "1 queue, perm 6",
        "1 queue with 0 messages that can no longer be consumed",
        "3 queues with 0 messages that can no longer be consumed",
    ]
    assert (deleted.status, gone.status) == (Status.OK, Status.NO_INPUT)


def test_on_a_terminal_the_plan_stands_before_the_question(tmp_path: Path, terminal: tuple[int, int]) -> None:
    with serving_both(tmp_path) as (_, name_server, _):
        parent, child = terminal
        command = [sys.executable, "-m", "mqtool", "topic", "create", "New", "--queues", "3", "-n", name_server]
        with subprocess.Popen(command, stdin=child, stdout=child, stderr=child) as process:
            os.close(child)
            os.write(parent, b"n\n")
            shown = b""
            with contextlib.suppress(OSError):  # raised when the command has ended
                while part := os.read(parent, 4096):
                    shown += part
        os.close(parent)

    assert process.returncode == Status.DAMAGE
    assert 0 < shown.index(b"3 queues") < shown.index(b"Proceed?") < shown.index(b"nothing was changed")


@on_a_loop
async def test_deleting_a_group_takes_its_offsets_and_its_topics(tmp_path: Path) -> None:
    async with running(tmp_path) as (name_server, broker):
        client = RemotingClient([broker])
        await join(client, 4)
        await client.close()
        wire = ("-n", name_server)
        await ask("group", "create", "billing", "--retries", 3, "--no-broadcast", "--yes", *wire)
        [settings] = (await ask("group", "list", "billing", *wire)).rows
        deleted = await ask("group", "delete", "billing", "--yes", *wire)
        groups = (await ask("group", "list", *wire)).rows
        offsets = (await ask("offset", "list", *wire)).rows
        topics = (await ask("topic", "list", *wire)).rows

    assert (settings["retry_max_times"], settings["consume_broadcast_enabled"]) == (3, False)
    assert [(row["what"], row["topic"]) for row in deleted.rows] == [("remove", None), ("remove", "%RETRY%billing")]
    assert "billing" not in {row["group"] for row in groups}
    assert offsets == []
    assert "%RETRY%billing" not in {row["topic"] for row in topics}


@pytest.mark.parametrize(
    ("command", "target"),
    [
        (("set", "--queue", 0, "--offset", 7), 7),
        (("reset", "--latest"), 10),
        (("reset", "--earliest"), 0),
        (("reset", "--since", "1"), 0),
        (("reset", "--since", "2100-01-01T00:00:00Z"), 10),
    ],
    ids=str,
)
@on_a_loop
async def test_a_consumer_that_waits_is_told_where_to_go_on(
    command: tuple[object, ...], target: int, tmp_path: Path
) -> None:
    flags = int(PullSysFlag.SUSPEND)
    fields = build_header(Pull("billing", "Orders", 0, 10, 32, flags, 0, 60_000, 1))
    async with running(tmp_path) as (name_server, broker):
        client = RemotingClient([broker])
        await join(client, 5)
        waiting = asyncio.create_task(
            client.invoke(RemotingCommand(RequestCode.PULL_MESSAGE, ext_fields=fields), timeout_ms=60_000)
        )
        await asyncio.sleep(0)
        ran = await ask("offset", *command, *ON_ORDERS, "--yes", "-n", name_server)
        told = await waiting
        [first, *_] = (await ask("offset", "list", "-n", name_server)).rows
        await client.close()

    assert ran.status == Status.OK
    assert (ran.rows[0]["consumer_offset"], ran.rows[0]["new_offset"]) == (5, target)
    assert (told.code, told.ext_fields["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, str(target))
    assert first["consumer_offset"] == target


@on_a_loop
async def test_consumers_of_older_brokers_reset_themselves(tmp_path: Path) -> None:
    told: list[RemotingCommand] = []
    arrived = asyncio.Event()

    def take(command: RemotingCommand) -> None:
        if command.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
            told.append(command)
            arrived.set()

    async with running(tmp_path, server_side=False) as (name_server, broker):
        client = RemotingClient([broker], on_request=take)
        await join(client, 5, 0, 0, 0)
        one = await ask("offset", "set", *ON_ORDERS, "--queue", 0, "--offset", 7, "--yes", "-n", name_server)
        whole = await ask("offset", "reset", *ON_ORDERS, "--latest", "--yes", "-n", name_server)
        await arrived.wait()
        await client.close()
        # Nobody is online any more: the broker's table is changed.
        alone = await ask("offset", "set", *ON_ORDERS, "--queue", 0, "--offset", 7, "--yes", "-n", name_server)
        [first, *_] = (await ask("offset", "list", "-n", name_server)).rows

    assert (one.status, whole.status, alone.status) == (Status.USAGE, Status.OK, Status.OK)
    assert "stop them first" in one.remarks
    assert b'"queueId":0,"topic":"Orders"}:10' in told[0].body
    assert first["consumer_offset"] == 7


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("set", *ON_ORDERS, "--queue", "0", "--offset", "11"), Status.USAGE),
        (("set", *ON_ORDERS, "--queue", "9", "--offset", "0"), Status.NO_INPUT),
        (("reset", "--group", "billing", "--topic", "Nothing", "--latest"), Status.NO_INPUT),
        (("reset", *ON_ORDERS), Status.USAGE),
        (("reset", *ON_ORDERS, "--latest", "--earliest"), Status.USAGE),
    ],
    ids=str,
)
@on_a_loop
async def test_what_cannot_be_set_is_refused(arguments: tuple[str, ...], status: Status, tmp_path: Path) -> None:
    async with running(tmp_path / "store") as (name_server, _):
        await ask("group", "create", "billing", "--yes", "-n", name_server)
        online = await ask("offset", *arguments, "--yes", "-n", name_server)
    offline = await ask("offset", *arguments, "--yes", "-s", tmp_path / "store")

    assert (online.status, offline.status) == (status, status)
    assert online.output == offline.output == ""


@on_a_loop
async def test_an_offset_of_a_group_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path / "store") as (name_server, broker):
        client = RemotingClient([broker])
        await join(client)
        await client.close()
        ran = await ask(
            *("offset", "reset", "--group", "biling", "--topic", "Orders", "--latest"), "--yes", "-n", name_server
        )

    assert (ran.status, ran.output) == (Status.NO_INPUT, "")
    assert ran.remarks.startswith("mqtool: no group matches biling; similar: billing")


# Changed in a store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Path]:
    yield copy_of(STORE, tmp_path)


EDITS = [
    ("topic", "create", "New", "--queues", "3"),
    ("topic", "create", "Retries", "--perm", "r"),
    ("topic", "delete", "Retries"),
    ("group", "create", "billing", "--retries", "3"),
    ("offset", "reset", "--group", "billing", "--topic", "Retries", "--latest"),
]


@pytest.mark.parametrize("edit", EDITS, ids=" ".join)
def test_an_edit_of_a_store_can_be_seen_first_and_undone(edit: tuple[str, ...], store: Path) -> None:
    before = snapshot(store)
    unanswered, dry = run(*edit, "-s", store), run(*edit, "-s", store, "--dry-run")
    assert snapshot(store) == before

    done = run(*edit, "-s", store, "--yes")
    after = snapshot(store)
    again = run(*edit, "-s", store, "--yes")
    assert snapshot(store) == after
    undone = run("undo", "-s", store, "--yes")

    assert (unanswered.status, dry.status, done.status, undone.status) == (3, 3, 0, 0)
    assert dry.rows == done.rows
    assert again.status == (Status.NO_INPUT if "delete" in edit else Status.OK)
    assert after != before
    assert snapshot(store) == before


def test_an_edit_changes_nothing_else_of_a_table(store: Path) -> None:
    path = store / "config" / "topics.json"
    before = path.read_text().splitlines()
    run("topic", "create", "Retries", "--queues", "9", "--yes", "-s", store)
    after = path.read_text().splitlines()

    changed = {(re.sub(r"\d+", "N", old), re.sub(r"\d+", "N", new)) for old, new in zip(before, after, strict=True)}
    assert all(old == new for old, new in changed)
    assert sum(old != new for old, new in zip(before, after, strict=True)) == 3  # two counts and the version


def test_a_deleted_topic_leaves_no_queue_and_no_offset(store: Path) -> None:
    topics = [row["topic"] for row in run("offset", "list", "-s", store).rows]
    topic = next(name for name in topics if not name.startswith("%"))
    assert run("topic", "delete", topic, "--yes", "-s", store).status == Status.OK

    assert not (store / "consumequeue" / topic).exists()
    assert topic not in {row["topic"] for row in run("offset", "list", "-s", store).rows}
    assert run("topic", "show", topic, "-s", store).status == Status.NO_INPUT


def test_offsets_of_light_queues_are_listed(store: Path) -> None:
    table = {"offsetTable": {}, "lmqOffsetTable": {"%LMQ%a@%LMQ%g": 5}}
    (store / "config" / "lmqConsumerOffset.json").write_text(json.dumps(table))
    rows = run("offset", "list", "--group", "%LMQ%g", "-s", store).rows
    assert [(row["topic"], row["queue_id"], row["consumer_offset"]) for row in rows] == [("%LMQ%a", 0, 5)]


def test_offsets_that_no_broker_reads_are_left_out_and_told(tmp_path: Path) -> None:
    store = copy_of("retry-533-clean", tmp_path)
    before = [run(*words, "-s", str(store)).rows for words in (("offset", "list"), ("dlq", "list"))]
    table = store / "config/consumerOffset.json"
    table.write_bytes(table.read_bytes().replace(b'"offsetTable":{', b'"offsetTable":{"nogroup":{"0":1},', 1))

    offsets, letters = (run(*words, "-s", str(store)) for words in (("offset", "list"), ("dlq", "list")))

    assert [offsets.rows, letters.rows] == before
    assert "the offsets of 'nogroup' are left out: they name no topic and group" in offsets.remarks


def test_a_store_that_a_broker_runs_on_is_left_alone(tmp_path: Path) -> None:
    with serving_both(tmp_path / "store"):
        ran = run("topic", "create", "New", "--yes", "-s", tmp_path / "store")

    assert (ran.status, ran.output) == (Status.BUSY, "")


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("topic", "create", "a b"), Status.USAGE),
        (("topic", "create", "New", "--broker", "broker-a"), Status.USAGE),
        (("topic", "delete", "TBW102"), Status.USAGE),
        (("topic", "delete", "Nothing"), Status.NO_INPUT),
        (("group", "create", ""), Status.USAGE),
        (("group", "delete", "nobody"), Status.NO_INPUT),
    ],
    ids=str,
)
def test_what_cannot_be_edited_is_refused(arguments: tuple[str, ...], status: Status, store: Path) -> None:
    before = snapshot(store)
    ran = run(*arguments, "-s", store, "--yes")

    assert (ran.status, ran.output) == (status, "")
    assert snapshot(store) == before


def test_tables_in_rocksdb_are_left_to_the_broker(tmp_path: Path) -> None:
    store = copy_of("rocksdb-533-clean", tmp_path)
    ran = run("topic", "create", "New", "--yes", "-s", store)

    assert ran.status == Status.USAGE
    assert "RocksDB" in ran.remarks


# Help


@pytest.mark.parametrize("command", ["topic", "group", "offset", "cluster", "pull", "send"])
def test_help_fits_a_narrow_terminal(command: str) -> None:
    def helped(*words: str) -> str:
        arguments = [sys.executable, "-m", "mqtool", *words, "--help"]
        done = subprocess.run(
            arguments, capture_output=True, text=True, check=True, env={"COLUMNS": "80", "PATH": "/usr/bin"}
        )
        return done.stdout

    text = helped(command)
    for line in text.partition("\nCommands:\n")[2].splitlines():
        text += helped(command, line.split()[0])
    assert max(map(len, text.splitlines())) <= 80
