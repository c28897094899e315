"""A broker that finds one of its tables damaged when it starts, through its sockets."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import mqtool
from mqtool.formats.codes import RequestCode, ResponseCode
from tests.wire_client import WireClient

NAMES = (
    "topics.json",
    "subscriptionGroup.json",
    "consumerOffset.json",
    "messageRequestMode.json",
    "delayOffset.json",
    "consumerOrderInfo.json",
)
# What a table that is read as JSON holds and a broker cannot use; one member of each file.
UNFIT = {
    "topics.json": {"topicConfigTable": {"T": {"perm": "many"}}},
    "subscriptionGroup.json": {"subscriptionGroupTable": [1]},
    "consumerOffset.json": {"offsetTable": {"T@G": {"0": "far"}}},
    "messageRequestMode.json": {"messageRequestModeMap": {"T": {"G": 1}}},
    "delayOffset.json": {"offsetTable": {"1": None}},
    "consumerOrderInfo.json": {"table": {"T@G": {"0": {"o": []}}}},
}


async def lived(store: Path) -> None:
    """Have a broker keep something in each of its tables, twice, so that each has a backup that says the same."""
    place: dict[str, Any] = {"consumerGroup": "G", "topic": "T", "queueId": 0}
    group = b'{"groupName": "G"}'
    mode = {"topic": "T", "consumerGroup": "G", "mode": "POP", "popShareQueueNum": 0}
    clock = mqtool.VirtualClock()
    async with mqtool.Broker(store, clock=clock) as broker:
        client = WireClient(broker.address)
        await client.make_topic("T", order=True)
        await client.done(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, group)
        for one in (1, 2):
            await client.send(b"first", topic="T")
            await client.send(b"later", topic="T", pairs={"DELAY": "1"})
            await client.done(RequestCode.UPDATE_CONSUMER_OFFSET, **place, commitOffset=1)
            await client.done(
                RequestCode.SET_MESSAGE_REQUEST_MODE, json.dumps(mode | {"popShareQueueNum": one}).encode()
            )
            await client.pop("T", f"Other{one}", 1, 1_000_000, in_order=True)
            clock.advance(20)
            await client.done(RequestCode.GET_BROKER_RUNTIME_INFO)
        await client.close()
    for name in NAMES:
        (store / "config" / f"{name}.bak").write_bytes((store / "config" / name).read_bytes())


@pytest.mark.parametrize("damage", ["empty", "gone", "unfit"])
def test_tables_that_are_empty_gone_or_unfit_are_taken_from_their_backups_and_said(
    damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        await lived(tmp_path)
        whole = {}
        for name in NAMES:
            path = tmp_path / "config" / name
            whole[path] = path.with_name(f"{name}.bak").read_bytes()
            if damage == "gone":
                path.unlink()
            else:
                path.write_text("" if damage == "empty" else json.dumps(UNFIT[name]))
        caplog.clear()
        async with mqtool.Broker(tmp_path) as broker:
            for path, data in whole.items():
                assert path.read_bytes() == path.with_name(f"{path.name}.bak").read_bytes() == data
            client = WireClient(broker.address)
            assert (await client.messages("T"))[0].body == b"first"
            asked: dict[str, Any] = {"consumerGroup": "G", "topic": "T", "queueId": 0}
            assert await client.done(RequestCode.QUERY_CONSUMER_OFFSET, **asked) == {"offset": "1"}
            told = await client.ask(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, group="G")
            assert told.code == ResponseCode.SUCCESS
            await client.close()
        for path in whole:
            assert sum("restored from its backup" in line and f"{path}" in line for line in caplog.messages) == 1
            assert path.with_name(f"{path.name}.damaged").exists() == (damage != "gone")
        caplog.clear()
        async with mqtool.Broker(tmp_path):
            assert "backup" not in caplog.text

    asyncio.run(test())


def test_offsets_of_no_topic_or_no_group_cost_a_broker_no_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def test() -> None:
        await lived(tmp_path)
        path = tmp_path / "config" / "consumerOffset.json"
        path.write_text(path.read_text().replace('"T@G":', '"@G":{0:7},"T@":{0:7},"T@G":'))
        async with mqtool.Broker(tmp_path) as broker:
            client = WireClient(broker.address)
            asked: dict[str, Any] = {"consumerGroup": "G", "topic": "T", "queueId": 0}
            assert await client.done(RequestCode.QUERY_CONSUMER_OFFSET, **asked) == {"offset": "1"}
            await client.close()

    asyncio.run(test())
    assert "offsets without a topic or a group are ignored: '@G', 'T@'" in caplog.text
    assert "backup" not in caplog.text
