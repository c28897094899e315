"""What a Prometheus is told of subscriptions."""

from pathlib import Path

from mqtool.engine.broker.metrics import gauges
from tests.simulation.pulsar import TOPIC, PulsarWorld


def test_backlog_consumers_and_producers_are_told_beside_what_rocketmq_tells(tmp_path: Path) -> None:
    world = PulsarWorld(1, tmp_path)
    for _ in range(5):
        world.send()
    shared = world.subscriptions[1]
    world.join(shared)
    world.flow(shared)

    told = {gauge.name: dict(gauge.rows) for gauge in gauges(world.broker, world.now)}

    cluster = "DefaultCluster"
    assert told["pulsar_producers_count"] == {(cluster, TOPIC): 1}
    assert told["pulsar_subscriptions_count"] == {(cluster, TOPIC): 4}
    names = [one.name for one in world.subscriptions]
    assert told["pulsar_subscription_back_log"] == {(cluster, TOPIC, name): len(world.keys) for name in names}
    assert told["pulsar_subscription_consumers_count"][cluster, TOPIC, "shared"] == 1
    held = sum(len(places) for places in shared.consumers[0].has.values())
    assert told["pulsar_subscription_unacked_messages"][cluster, TOPIC, "shared"] == held > 0
    assert "rocketmq_producer_offset" in told
