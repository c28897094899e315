"""The commands that talk to brokers, with real brokers; what they show and do is held against mqadmin and the store."""

import asyncio
from pathlib import Path

import pytest

from mqtool.engine.cluster import Cluster
from mqtool.engine.server_configs import NameServerConfig
from mqtool.errors import Status
from tests.commands.running import Ran, run
from tests.differential.conftest import jars
from tests.differential.java_broker import POM, mqadmin, running_broker, within
from tests.differential.java_store import each_version
from tests.ports import free_port

pytestmark = pytest.mark.java

_PATIENCE = 300.0
_CLEAR = ("--topic", "Orders", "--queue", "0")


@each_version
def test_what_is_shown_and_changed_is_what_a_real_broker_has(version: str, tmp_path: Path) -> None:
    jars(version, POM)

    async def shown_and_changed() -> None:
        async with Cluster(NameServerConfig()) as cluster:
            name_server = cluster.name_server_address

            async def ask(*arguments: object) -> Ran:
                ran = await asyncio.to_thread(run, *arguments, "-n", name_server)
                assert ran.status == Status.OK, (arguments, ran)
                return ran

            async with (
                running_broker(version, tmp_path / "broker", name_server, free_port()) as address,
                mqadmin(version, tmp_path / "tools", name_server) as tool,
            ):
                # In its first second a broker fails when it is asked for its figures.
                while (await asyncio.to_thread(run, "cluster", "list", "-n", name_server)).status == Status.UNAVAILABLE:
                    await asyncio.sleep(0.1)
                [broker] = (await ask("cluster", "list")).rows
                assert (broker["broker_name"], broker["address"]) == ("broker-java", address)
                assert broker["version"] == f"V{version.replace('.', '_')}"
                [*stats] = (await ask("cluster", "show", "broker-java")).rows
                assert "commitLogMaxOffset" in {row["name"] for row in stats}

                await ask("topic", "create", "Orders", "--queues", "2", "--yes")
                await ask("group", "create", "billing", "--retries", "3", "--yes")
                [topic] = (await ask("topic", "list", "Orders")).rows
                assert (topic["read_queue_count"], topic["write_queue_count"], topic["perm"]) == (2, 2, 6)
                assert "Orders" in await tool.run("topicList")
                [group] = (await ask("group", "list", "billing")).rows
                assert (group["retry_max_times"], group["members"]) == (3, 0)

                sent = (await ask("send", "--topic", "Orders", "--tag", "a", "--queue", "0", *map(str, range(40)))).rows
                assert [row["queue_offset"] for row in sent] == [*range(40)]
                status = await tool.run("topicStatus", "-t", "Orders")
                [shown, other] = (await ask("topic", "show", "Orders")).rows
                assert (shown["min_offset"], shown["max_offset"], other["max_offset"]) == (0, 40, 0)
                [line] = [
                    words for words in map(str.split, status.splitlines()) if words[:3] == ["broker-java", "0", "0"]
                ]
                assert line[3] == "40"

                # The same from the broker and from its store, while it runs.
                for arguments in ((), ("--offset", 17, "--limit", 5), ("--tag", "a"), ("--tag", "b"), ("--offset", 99)):
                    online = await ask("pull", *_CLEAR, *arguments)
                    offline = await asyncio.to_thread(
                        run, "pull", "-s", tmp_path / "broker" / "store", *_CLEAR, *arguments
                    )
                    assert (online.output, online.remarks.splitlines()[-1:]) == (
                        offline.output,
                        offline.remarks.splitlines()[-1:],
                    )

                for option, wanted in (("--latest", 40), ("--earliest", 0), ("--since=0", 0)):
                    await ask("offset", "reset", "--group", "billing", "--topic", "Orders", option, "--yes")
                    [first, _] = (await ask("offset", "list", "--group", "billing")).rows
                    assert (first["consumer_offset"], first["max_offset"], first["lag"]) == (wanted, 40, 40 - wanted)
                await ask("offset", "set", "--group", "billing", *_CLEAR, "--offset", 17, "--yes")
                await ask("topic", "create", "%RETRY%billing", "--queues", "1", "--yes")  # without which mqadmin fails
                progress = await tool.run("consumerProgress", "-g", "billing")
                [line] = [
                    words
                    for words in map(str.split, progress.splitlines())
                    if words[:3] == ["Orders", "broker-java", "0"]
                ]
                assert line[3:5] == ["40", "17"]
                shown_group = (await ask("group", "show", "billing")).rows
                assert [row["kind"] for row in shown_group] == ["group", "queue", "queue"]
                assert [row["consumer_offset"] for row in shown_group if row["kind"] == "queue"] == [17, 0]

            # The store of a broker that is stopped is changed, and the broker has taken that up when it starts again.
            store = tmp_path / "broker" / "store"
            for change in (
                ("topic", "create", "Later", "--queues", "3", "--perm", "r"),
                ("group", "create", "billing", "--retries", "5"),
                ("offset", "set", "--group", "billing", *_CLEAR, "--offset", "23"),
                ("offset", "reset", "--group", "audit", "--topic", "Orders", "--latest"),
            ):
                assert run(*change, "-s", store, "--yes").status == Status.OK
            (tmp_path / "broker").rename(tmp_path / "stopped")
            async with running_broker(
                version, tmp_path / "broker", name_server, free_port(), tmp_path / "stopped" / "store"
            ):
                rows = (await asyncio.to_thread(run, "offset", "list", "-n", name_server)).rows
                offsets = {
                    (row["group"], row["queue_id"]): row["consumer_offset"] for row in rows if row["topic"] == "Orders"
                }
                assert (offsets["billing", 0], offsets["audit", 0]) == (23, 40)
                [topic] = (await asyncio.to_thread(run, "topic", "list", "Later", "-n", name_server)).rows
                assert (topic["read_queue_count"], topic["perm"]) == (3, 4)
                [group] = (await asyncio.to_thread(run, "group", "list", "billing", "-n", name_server)).rows
                assert group["retry_max_times"] == 5

                await asyncio.to_thread(run, "topic", "delete", "Orders", "-n", name_server, "--yes")
                await asyncio.to_thread(run, "group", "delete", "billing", "-n", name_server, "--yes")
                rows = (await asyncio.to_thread(run, "topic", "list", "-n", name_server)).rows
                assert "Orders" not in {row["topic"] for row in rows}
                rows = (await asyncio.to_thread(run, "group", "list", "-n", name_server)).rows
                assert "billing" not in {row["group"] for row in rows}

    within(_PATIENCE, shown_and_changed())
