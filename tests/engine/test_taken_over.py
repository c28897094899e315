"""Stores that real brokers left in the middle of things are served whole by ours: nothing is lost or comes twice."""

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

import mqtool
from mqtool.engine.repair.findings import Severity
from mqtool.engine.store.paths import StoreConfig
from mqtool.formats.commit_log import TRANSACTION_COMMIT, TRANSACTION_MASK
from mqtool.formats.message import Message
from mqtool.formats.topics import SCHEDULE_TOPIC
from tests.engine.store.test_message_store import settings_of
from tests.golden import GOLDEN_NAMES, KEEPS_ALL, copy_of, manifest
from tests.wire_client import WireClient

NOT_SERVED = ("dledger", "rocksdb")
WITHOUT_TOPICS = ("many", "propcrc", "special")  # made by RocketMQ's store alone
NAMES = [name for name in GOLDEN_NAMES if not name.startswith(NOT_SERVED + WITHOUT_TOPICS)]
WAITING = [name for name in NAMES if name.startswith(("retry", "timer", "txn"))]
HOUR, DAYS = 3600, 4
TIMER_TOPIC = "rmq_sys_wheel_timer"


class TakenOver:
    """A golden store that our broker runs on, at the time it was left."""

    def __init__(self, name: str, folder: Path) -> None:
        self.store = copy_of(name, folder)
        self.messages = manifest(name)["messages"]
        self.clock = mqtool.VirtualClock(self.messages[-1]["store_timestamp"] + 1000)
        self.broker = mqtool.Broker(self.store, settings={**settings_of(name), **KEEPS_ALL}, clock=self.clock)

    def places(self) -> dict[tuple[str, int], list[int]]:
        """Return the addresses of the messages of each queue."""
        found: dict[tuple[str, int], list[int]] = {}
        for one in self.messages:
            if one["sys_flag"] & TRANSACTION_MASK in (0, TRANSACTION_COMMIT):
                found.setdefault((one["topic"], one["queue_id"]), []).append(one["phy"])
        return found

    def faults(self) -> list[str]:
        findings = mqtool.verify_store(mqtool.open_store(self.store, self.broker_settings()))
        return [f"{one.code} {one.message}" for one in findings if one.severity != Severity.NOTE]

    def broker_settings(self) -> dict[str, str]:
        return {name: str(value) for name, value in manifest(self.store.name)["config"].items()}

    async def pulled(
        self, client: WireClient, places: Iterable[tuple[str, int]]
    ) -> dict[tuple[str, int], list[Message]]:
        return {place: await client.messages(*place) for place in places}


@pytest.mark.parametrize("name", NAMES)
def test_every_message_of_a_store_of_rocketmq_is_delivered(name: str, tmp_path: Path) -> None:
    taken = TakenOver(name, tmp_path)
    places = taken.places()

    async def found() -> dict[tuple[str, int], list[int]]:
        async with taken.broker as broker:
            client = WireClient(broker.address)
            pulled = await taken.pulled(client, places)
            await client.close()
        # Messages of an inner batch have the address of their batch.
        return {place: [*dict.fromkeys(one.physical_offset for one in messages)] for place, messages in pulled.items()}

    assert asyncio.run(found()) == places
    assert taken.faults() == []


@pytest.mark.parametrize("name", WAITING)
def test_what_waits_in_a_store_of_rocketmq_is_delivered_in_time_and_once(name: str, tmp_path: Path) -> None:
    taken = TakenOver(name, tmp_path)
    left_at, levels = taken.clock(), StoreConfig(settings_of(name)).delay_levels()
    waits = [one for one in taken.messages if one["topic"] in (SCHEDULE_TOPIC, TIMER_TOPIC)]
    ended = {one["properties"].get("TIMER_DEL_UNIQKEY", "").partition("+")[2] for one in waits}
    due = {
        (one["properties"]["REAL_TOPIC"], one["uniq_key"], one["reconsume_times"]): _due(one, levels)
        for one in waits
        if one["uniq_key"] not in ended and "TIMER_DEL_UNIQKEY" not in one["properties"]
    }
    places = {(one["properties"]["REAL_TOPIC"], int(one["properties"]["REAL_QID"])) for one in waits}

    async def delivered() -> list[Message]:
        async with taken.broker as broker:
            client = WireClient(broker.address)
            while taken.clock() - left_at < DAYS * 24 * HOUR * 1000:
                await asyncio.to_thread(taken.clock.advance, HOUR)
            pulled = await taken.pulled(client, places)
            await client.close()
        return [
            one for messages in pulled.values() for one in messages if {"DELAY", "TIMER_OUT_MS"} & {*one.properties}
        ]

    found = asyncio.run(delivered())
    assert Counter((one.topic, one.unique_key, one.reconsume_times) for one in found) == Counter([*due])
    for one in found:
        if one.store_timestamp > left_at:
            at = max(left_at, due[one.topic, str(one.unique_key), one.reconsume_times])
            assert at <= one.store_timestamp < at + HOUR * 1000
    assert taken.faults() == []


def _due(message: dict[str, Any], levels: Sequence[int]) -> int:
    """Return when a message that waits is to be delivered, in ms."""
    properties = message["properties"]
    if message["topic"] == TIMER_TOPIC:
        return int(properties["TIMER_OUT_MS"])
    return int(message["store_timestamp"]) + levels[int(properties["DELAY"]) - 1]
