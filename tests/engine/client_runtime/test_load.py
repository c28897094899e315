"""A load on a broker of our own, above all one that does not do what it should."""

import asyncio

import mqtool
from mqtool.engine.client import calls
from mqtool.engine.client.measuring import LoadTally
from mqtool.engine.client_runtime.load import Load, LoadOptions
from mqtool.engine.client_runtime.wire import Wire
from mqtool.formats.config_changes import changed_topic

FEW = LoadOptions(in_flight=2, consumers=1)
LONG = 600.0


def test_what_a_broker_refuses_is_counted_by_the_name_of_its_code() -> None:
    async def run() -> LoadTally:
        tally = LoadTally()
        rules = {"autoCreateTopicEnable": False}
        async with mqtool.Broker(settings=rules) as broker, Wire([broker.name_server_address]) as wire:
            await wire.request(broker.address, calls.put_topic(changed_topic(None, "Orders", 2, None)))
            async with Load([broker.name_server_address], "Orders", FEW, {}) as load:
                await load.run(tally, LONG, 5)
                await wire.request(broker.address, calls.delete_topic("Orders"))
                await load.run(tally, LONG, 2)
        return tally

    tally = asyncio.run(run())

    assert (tally.sent.times.count, tally.consumed.times.count, tally.missing) == (5, 5, 0)
    assert tally.errors == {"TOPIC_NOT_EXIST": 2}


def test_a_broker_that_has_gone_ends_no_load() -> None:
    async def run() -> tuple[str, LoadTally]:
        tally = LoadTally()
        async with mqtool.Broker() as broker:
            options = LoadOptions(in_flight=2, consumers=0)
            load = await Load([broker.name_server_address], "Orders", options, {}).__aenter__()
            await load.run(tally, LONG, 5)
        await load.run(tally, LONG, 3)
        await load.__aexit__(None, None, None)
        return broker.address, tally

    address, tally = asyncio.run(run())

    assert tally.sent.times.count == 5
    assert tally.errors.total() == 3
    assert all(address in name for name in tally.errors)
