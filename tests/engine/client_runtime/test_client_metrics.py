"""What clients measure is what a Prometheus reads: by the names of the Java client, as often as it happened."""

import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import mqtool
from mqtool import ConsumeFrom, ConsumerMessage, ConsumeStatus, ProducerMessage

Samples = dict[str, list[tuple[dict[str, str], float]]]
"""What there is of each name: labels, and the value."""


@pytest.fixture
def broker() -> Iterator[mqtool.Broker]:
    with mqtool.Broker() as running:
        with mqtool.AdminClient(running.name_server_address) as admin:
            admin.create_topic("Orders", queues=1)
        yield running


def read(registry: CollectorRegistry) -> Samples:
    """Return what a Prometheus reads, by name."""
    found: Samples = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def counts(found: Samples, name: str, *labels: str) -> dict[tuple[str, ...], float]:
    return {tuple(one[label] for label in labels): value for one, value in found[name]}


def test_sends_and_listeners_are_measured_under_the_names_of_the_java_client(broker: mqtool.Broker) -> None:
    registry = CollectorRegistry()
    failed, succeeded, may_end = threading.Event(), threading.Event(), threading.Event()

    def listen(messages: Sequence[ConsumerMessage], context: mqtool.ConsumeContext) -> ConsumeStatus:
        context.delay_level = 1
        if messages[0].reconsume_times:
            succeeded.set()
            assert may_end.wait(20)
            return ConsumeStatus.SUCCESS
        failed.set()
        return ConsumeStatus.LATER

    consumer = mqtool.PushConsumer(
        "G", listen, broker.name_server_address, metrics=registry, consume_from_where=ConsumeFrom.FIRST_OFFSET
    )
    consumer.subscribe("Orders")
    with mqtool.Producer("P", broker.name_server_address, metrics=registry) as producer, consumer:
        producer.send(ProducerMessage("Orders", b"three"))
        producer.send_batch([ProducerMessage("Others", b"1"), ProducerMessage("Others", b"2")])
        with pytest.raises(mqtool.UsageError):
            producer.send(ProducerMessage("Orders", b""))  # which nobody sends
        with pytest.raises(mqtool.SendError):
            producer.send(ProducerMessage("Others", b"late"), timeout_ms=0)  # it may be stored all the same
        assert succeeded.wait(20)
        at_work = read(registry)
        ids = producer.client_id, consumer.client_id
        may_end.set()
    found = read(registry)

    assert counts(found, "rocketmq_send_cost_time_count", "topic", "client_id", "invocation_status") == {
        ("Orders", ids[0], "success"): 1,
        ("Others", ids[0], "success"): 2,
        ("Others", ids[0], "failure"): 1,
    }
    assert counts(found, "rocketmq_process_time_count", "topic", "consumer_group", "invocation_status") == {
        ("Orders", "G", "failure"): 1,
        ("Orders", "G", "success"): 1,
    }
    assert [n for _, n in found["rocketmq_await_time_count"]] == [2]
    assert {one["client_id"] for one, _ in found["rocketmq_await_time_count"]} == {ids[1]}
    assert max(n for _, n in at_work["rocketmq_consumer_cached_messages"]) == 1
    assert max(n for _, n in at_work["rocketmq_consumer_cached_bytes"]) == len(b"three")
    assert "rocketmq_consumer_cached_messages" not in found  # it holds none any more
    buckets = [one["le"] for one, _ in found["rocketmq_send_cost_time_bucket"] if one["invocation_status"] == "failure"]
    assert buckets == ["1.0", "5.0", "10.0", "20.0", "50.0", "200.0", "500.0", "+Inf"]


def test_how_long_messages_wait_for_a_poll_is_measured(broker: mqtool.Broker) -> None:
    registry = CollectorRegistry()
    options = {"metrics": registry, "namespace": "N", "consume_from_where": ConsumeFrom.FIRST_OFFSET}
    with mqtool.Producer("P", broker.name_server_address, namespace="N") as producer:
        producer.send(ProducerMessage("Orders", b"1"))
        consumer = mqtool.LitePullConsumer("G", broker.name_server_address, options)
        consumer.subscribe("Orders")
        with consumer:
            [_] = consumer.poll(20_000)
    [(labels, count)] = read(registry)["rocketmq_await_time_count"]
    assert (labels["topic"], count) == ("Orders", 1)


def test_what_is_no_registry_is_refused(broker: mqtool.Broker) -> None:
    with pytest.raises(
        mqtool.UsageError, match="metrics must be True or a CollectorRegistry of prometheus_client, not 5558"
    ):
        mqtool.Producer("P", broker.name_server_address, metrics=5558)


def test_a_client_without_metrics_loads_nothing_of_them() -> None:
    program = "import mqtool, sys; mqtool.Producer('P', 'a:1'); print('prometheus_client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "False\n"
