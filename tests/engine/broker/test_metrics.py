"""Gauges for a Prometheus, by the names of RocketMQ's exporter and with the values of the store."""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mqtool.engine.broker.broker import BrokerController
from mqtool.engine.broker.following import FollowingStatus
from mqtool.engine.broker.gauges import Gauge
from mqtool.engine.broker.metrics import gauges
from mqtool.engine.broker.settings import BrokerSettings
from mqtool.engine.replication.master import Master, MasterSettings
from mqtool.engine.store.message_store import MessageStore
from mqtool.formats.bodies import ConsumerData, Subscription
from mqtool.formats.codes import RequestCode
from mqtool.formats.peer import Peer
from tests.engine.broker.asking import Asking, broker_at_work
from tests.engine.store.live import NOW, half_full, new_message

_EXPORTER = Path(__file__).parents[3] / "fixtures" / "exporter" / "gauges.txt"


def _at_work(asking: Asking) -> Mapping[str, Gauge]:
    """Store messages, have some consumed and some sent back; return the gauges a minute later."""
    broker = asking.broker
    for topic, queue_id in (("T", 0), ("T", 0), ("T", 1), ("T", 1), ("%DLQ%G", 0)):
        broker.topics.of_group(topic, 2, False, NOW)
        asking.append(new_message(topic, queue_id=queue_id))
    subscription = Subscription("T", "*")
    data = ConsumerData("G", "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_LAST_OFFSET", (subscription,))
    broker.clients.register_consumer(data, asking.client_of(Peer(9, "192.0.2.9", 1), "c1"))
    asking.door.outgoing()  # it is told of its group
    broker.clients.register_producer("P", asking.client_of(Peer(8, "192.0.2.8", 1), "p1"))
    broker.groups.find("G", NOW)
    pull: dict[str, Any] = {
        "consumerGroup": "G",
        "topic": "T",
        "queueId": 0,
        "queueOffset": 0,
        "maxMsgNums": 32,
        "sysFlag": 4,
    }
    asking.ask(
        RequestCode.PULL_MESSAGE,
        **pull,
        commitOffset=0,
        suspendTimeoutMillis=0,
        subVersion=0,
        subscription="*",
    )
    broker.offsets.commit("G", "T", 0, 1)
    broker.offsets.commit("G", "T", 1, 2)
    back: dict[str, Any] = {
        "group": "G",
        "offset": 0,
        "delayLevel": 3,
        "originMsgId": "x",
        "originTopic": "T",
        "unitMode": "false",
    }
    assert asking.ask(RequestCode.CONSUMER_SEND_MSG_BACK, **back).code == 0
    asking.now += 60_000
    broker.tick(asking.now)
    return {gauge.name: gauge for gauge in gauges(broker, asking.now)}


def test_names_and_labels_are_those_of_the_exporter(tmp_path: Path) -> None:
    theirs = dict(line.split(" ", 1) for line in _EXPORTER.read_text().splitlines())
    with broker_at_work(tmp_path) as asking:
        ours = _at_work(asking)

    for name, gauge in ours.items():
        assert name.startswith("mqtool_") or " ".join(gauge.labels) == theirs[name]
        assert all(len(values) == len(gauge.labels) for values, _ in gauge.rows)
    assert len(ours) > 45


def test_values_are_those_of_the_store_and_the_groups(tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        told = {name: dict(gauge.rows) for name, gauge in _at_work(asking).items()}
        end = asking.store.log.end_offset
        queue = asking.store.queue("T", 0)
        assert queue is not None
        size = sum(unit.size for unit in queue.units(0, 2))

    place = "DefaultCluster", "broker-a"
    of_group = (*place, "T", "G")
    assert told["rocketmq_producer_offset"][*place, "T"] == 4
    assert told["rocketmq_topic_dlq_offset"] == {(*place, "G"): 1}
    assert told["rocketmq_group_dlqdiff"] == {("G", "%DLQ%G", "0", "1"): 1}
    assert told["rocketmq_group_diff"] == {("G", "T", "1", "1"): 1}
    assert told["rocketmq_consumer_offset"] == {of_group: 4}
    assert told["rocketmq_group_consume_total_offset"] == {of_group: 3}
    assert told["rocketmq_group_get_latency_by_storetime"] == {of_group: 60_000}
    assert told["rocketmq_producer_tps"][*place, "T"] == 4 / 60
    assert told["rocketmq_consumer_tps"] == {of_group: 2 / 60}
    assert told["rocketmq_consumer_message_size"] == {of_group: size}
    assert told["rocketmq_send_back_nums"] == {of_group: 1}
    assert told["rocketmq_group_count"] == {("192.0.2.9:1", "c1", "G"): 1}
    assert told["rocketmq_producer_count"] == {(*place, "P"): 1}
    assert [*told["rocketmq_brokeruntime_commitlog_maxoffset"].values()] == [end]
    assert [*told["rocketmq_broker_qps"].values()] == [2 / 60]


def test_a_slave_tells_whether_it_follows_its_master_and_why_not(tmp_path: Path) -> None:
    settings, _ = BrokerSettings().updated({"brokerRole": "SLAVE", "brokerId": "1"})
    with contextlib.closing(MessageStore(tmp_path, now=NOW, usage=half_full)) as store:
        broker = BrokerController(store, NOW, settings)
        name, place = "mqtool_replication_following", ("DefaultCluster", "broker-a")
        told = {gauge.name: dict(gauge.rows) for gauge in gauges(broker, NOW)}
        assert told[name] == {(*place, "searching", ""): 0}
        broker.following.status, broker.following.reason = FollowingStatus.STOPPED, "it ends beyond"
        told = {gauge.name: dict(gauge.rows) for gauge in gauges(broker, NOW)}
        assert told[name] == {(*place, "stopped", "it ends beyond"): 0}
        broker.following.status, broker.following.reason = FollowingStatus.FOLLOWING, ""
        told = {gauge.name: dict(gauge.rows) for gauge in gauges(broker, NOW)}
        assert told[name] == {(*place, "following", ""): 1}


def test_a_slave_tells_whether_and_when_it_has_copied_the_tables_of_its_master(tmp_path: Path) -> None:
    settings, _ = BrokerSettings().updated({"brokerRole": "SLAVE", "brokerId": "1"})
    with contextlib.closing(MessageStore(tmp_path, now=NOW, usage=half_full)) as store:
        broker = BrokerController(store, NOW, settings)
        is_copied, age = "mqtool_replication_tables_copied", "mqtool_replication_tables_age_seconds"
        place = "DefaultCluster", "broker-a"
        told = {gauge.name: dict(gauge.rows) for gauge in gauges(broker, NOW)}
        assert (told[is_copied], told[age]) == ({(*place, ""): 0}, {})
        broker.following.tables_timestamp = NOW
        told = {gauge.name: dict(gauge.rows) for gauge in gauges(broker, NOW + 1500)}
        assert (told[is_copied], told[age]) == ({(*place, ""): 1}, {place: 1.5})
        broker.following.tables_reason = "topics: no permission"
        told = {gauge.name: dict(gauge.rows) for gauge in gauges(broker, NOW + 1500)}
        assert (told[is_copied], told[age]) == ({(*place, "topics: no permission"): 0}, {place: 1.5})


def test_of_each_slave_it_is_told_how_far_it_is_behind(tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        assert [gauge.rows for gauge in gauges(asking.broker, NOW) if "mqtool_replication" in gauge.name] == [[]] * 7
        master = Master(asking.store.log, MasterSettings())
        asking.broker.has_slaves(master)
        asking.append(new_message("T"))
        end = asking.store.log.end_offset
        for number, offset in ((1, end), (2, end - 30)):
            peer = Peer(number, "192.0.2.1", number)
            master.opened(peer, NOW)
            master.reported(peer, offset, NOW)
        [*master.tick(NOW)]
        told = {gauge.name: dict(gauge.rows) for gauge in gauges(asking.broker, NOW + 2500)}

    place = "DefaultCluster", "broker-a"
    first, second = (*place, "192.0.2.1:1"), (*place, "192.0.2.1:2")
    assert told["mqtool_replication_lag_bytes"] == {first: 0, second: 30}
    assert told["mqtool_replication_lag_seconds"] == {first: 0, second: 2.5}
    assert told["mqtool_replication_in_sync_count"] == {place: 3}
