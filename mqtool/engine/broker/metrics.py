"""Prometheus gauges of a broker, with the names and labels of RocketMQ's exporter.

Values known only to clients, latencies of the store, and bytes by topic are missing; rates are of the last minute.
(Names: ``RMQMetricsCollector`` and ``MetricsCollectTask`` of rocketmq-exporter.)
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from mqtool.engine.broker.following import FollowingStatus
from mqtool.engine.broker.gauges import Gauge, Row
from mqtool.engine.broker.operations.administration import runtime_info
from mqtool.engine.broker.operations.queues import store_timestamp
from mqtool.engine.broker.settings import Role
from mqtool.formats.topics import DEAD_LETTER_PREFIX, RETRY_PREFIX

if TYPE_CHECKING:
    from mqtool.engine.broker.broker import BrokerController
    from mqtool.engine.replication.master import SlaveStatus


class _Progress(NamedTuple):
    topic: str
    group: str
    stored: int  # messages, by the ends of the queues
    consumed: int
    latency_ms: int  # how long the oldest message that is not consumed has waited


class _View(NamedTuple):
    """The data for the rows of gauges."""

    broker: "BrokerController"
    now: int  # ms
    progress: list[_Progress]


class _MetricFamily(NamedTuple):
    meaning: str
    labels: tuple[str, ...]
    rows: Callable[[_View], Iterable[Row]]


def gauges(broker: "BrokerController", now: int) -> Iterator[Gauge]:
    """Yield every gauge with its values at ``now`` (ms)."""
    view = _View(broker, now, list(_progress(broker, now)))
    for name, kind in _KINDS.items():
        yield Gauge(name, kind.meaning, kind.labels, list(kind.rows(view)))
    yield from _runtime(broker, now)
    for of_door in broker.further_gauges:
        yield from of_door()


def _place(broker: "BrokerController") -> tuple[str, str]:
    return broker.settings.cluster_name, broker.settings.broker_name


# Topics


def _ends(broker: "BrokerController", wanted: Callable[[str], bool]) -> Iterator[tuple[str, int]]:
    """Yield, for each topic, how many messages its queues have ever received."""
    totals: dict[str, int] = {}
    for topic, queue_id in broker.store.queues():
        queue = broker.store.queue(topic, queue_id)
        if queue is not None and wanted(topic):
            totals[topic] = totals.get(topic, 0) + queue.next_offset
    yield from totals.items()


def _topic_offsets(view: _View) -> Iterator[Row]:
    for topic, end in _ends(view.broker, lambda topic: not topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))):
        yield (*_place(view.broker), topic), end


def _retry_offsets(view: _View) -> Iterator[Row]:
    for topic, end in _ends(view.broker, lambda topic: topic.startswith(RETRY_PREFIX)):
        yield (*_place(view.broker), topic), end


def _dead_letter_offsets(view: _View) -> Iterator[Row]:
    for topic, end in _ends(view.broker, lambda topic: topic.startswith(DEAD_LETTER_PREFIX)):
        yield (*_place(view.broker), topic.removeprefix(DEAD_LETTER_PREFIX)), end


def _topic_rates(view: _View) -> Iterator[Row]:
    for topic in list(view.broker.broker_stats.counts.stored):
        if shares := view.broker.broker_stats.shares("stored", topic, view.now):
            yield (*_place(view.broker), topic), shares[0].rate


# Groups


def _progress(broker: "BrokerController", now: int) -> Iterator[_Progress]:
    for topic, group in broker.offsets.pairs():
        stored = consumed = latency = 0
        for queue_id, offset in broker.offsets.of(group, topic).items():
            queue = broker.store.queue(topic, queue_id)
            if queue is None:
                continue
            stored += queue.next_offset
            consumed += min(max(offset, 0), queue.next_offset)
            first = max(offset, queue.min_offset(broker.store.log.min_offset))
            if (waits := store_timestamp(broker.store, topic, queue_id, first)) >= 0:
                latency = max(latency, now - waits)
        yield _Progress(topic, group, stored, consumed, latency)


def _stored_for_groups(view: _View) -> Iterator[Row]:
    for progress in view.progress:
        yield (*_place(view.broker), progress.topic, progress.group), progress.stored


def _consumed_by_groups(view: _View) -> Iterator[Row]:
    for progress in view.progress:
        yield (*_place(view.broker), progress.topic, progress.group), progress.consumed


def _group_latencies(view: _View) -> Iterator[Row]:
    for progress in view.progress:
        yield (*_place(view.broker), progress.topic, progress.group), progress.latency_ms


def _behind(wanted: Callable[[str], bool]) -> Callable[[_View], Iterable[Row]]:
    def rows(view: _View) -> Iterator[Row]:
        for progress in view.progress:
            if wanted(progress.topic):
                online = view.broker.clients.group(progress.group)
                model = "0" if online and online.is_broadcast else "1"
                labels = progress.group, progress.topic, str(len(online.members) if online else 0), model
                yield labels, progress.stored - progress.consumed

    return rows


def _shares_of_groups(kind: str, *, as_rate: bool) -> Callable[[_View], Iterable[Row]]:
    def rows(view: _View) -> Iterator[Row]:
        for key in list(getattr(view.broker.broker_stats.counts, kind)):
            if shares := view.broker.broker_stats.shares(kind, key, view.now):
                yield (*_place(view.broker), *key), shares[0].rate if as_rate else shares[0].sum

    return rows


def _dead_letters(view: _View) -> Iterator[Row]:
    """Yield how many dead letters each group has: they are not consumed automatically."""
    for topic, end in _ends(view.broker, lambda topic: topic.startswith(DEAD_LETTER_PREFIX)):
        yield (topic.removeprefix(DEAD_LETTER_PREFIX), topic, "0", "1"), end


def _consumers(view: _View) -> Iterator[Row]:
    for group in view.broker.clients.consumer_groups():
        if online := view.broker.clients.group(group):
            addresses = ",".join(sorted(client.session.address for client in online.members.values()))
            ids = ",".join(sorted(client.client_id for client in online.members.values()))
            yield (addresses, ids, group), len(online.members)


def _producers(view: _View) -> Iterator[Row]:
    for group in view.broker.clients.producer_groups():
        yield (*_place(view.broker), group), len(view.broker.clients.producers(group))


# The broker


def _broker_labels(broker: "BrokerController") -> tuple[str, ...]:
    return broker.settings.cluster_name, broker.address, broker.settings.broker_name


def _stored_rate(view: _View) -> Iterator[Row]:
    yield _broker_labels(view.broker), view.broker.broker_stats.stored_rates(view.now)[1]


def _delivered_rate(view: _View) -> Iterator[Row]:
    yield _broker_labels(view.broker), view.broker.broker_stats.delivered_rates(view.now)[1]


# Replication


def _of_slaves(value: Callable[["SlaveStatus"], float | None]) -> Callable[[_View], Iterable[Row]]:
    """Return rows with a value for each slave that has it."""

    def rows(view: _View) -> Iterator[Row]:
        slaves = view.broker.slaves
        for slave in slaves.statuses(view.now) if slaves else ():
            if (figure := value(slave)) is not None:
                yield (*_place(view.broker), slave.address), figure

    return rows


def _replicas_in_sync(view: _View) -> Iterator[Row]:
    if view.broker.slaves and view.broker.state.role is not Role.SLAVE:
        yield _place(view.broker), 1 + view.broker.slaves.in_sync_count()


def _following(view: _View) -> Iterator[Row]:
    if view.broker.state.role is Role.SLAVE:
        following = view.broker.following
        is_following = following.status is FollowingStatus.FOLLOWING
        yield (*_place(view.broker), following.status, following.reason), int(is_following)


def _tables_copied(view: _View) -> Iterator[Row]:
    if view.broker.state.role is Role.SLAVE:
        following = view.broker.following
        is_copied = following.tables_timestamp and not following.tables_reason
        yield (*_place(view.broker), following.tables_reason), int(bool(is_copied))


def _tables_age(view: _View) -> Iterator[Row]:
    following = view.broker.following
    if view.broker.state.role is Role.SLAVE and following.tables_timestamp:
        yield _place(view.broker), max(view.now - following.tables_timestamp, 0) / 1000


_OF_SLAVE = ("cluster", "broker", "slave")
_OF_TOPIC = ("cluster", "broker", "topic")
_OF_GROUP = ("cluster", "broker", "topic", "group")
_OF_DIFFERENCE = ("group", "topic", "countOfOnlineConsumers", "msgModel")
_OF_BROKER = ("cluster", "brokerIP", "broker")

_KINDS = {
    "rocketmq_broker_tps": _MetricFamily("messages stored per second", _OF_BROKER, _stored_rate),
    "rocketmq_broker_qps": _MetricFamily("messages delivered to consumers per second", _OF_BROKER, _delivered_rate),
    "rocketmq_producer_tps": _MetricFamily("messages stored per second", _OF_TOPIC, _topic_rates),
    "rocketmq_producer_offset": _MetricFamily("messages ever stored in a topic", _OF_TOPIC, _topic_offsets),
    "rocketmq_topic_retry_offset": _MetricFamily("messages ever stored in a retry topic", _OF_TOPIC, _retry_offsets),
    "rocketmq_topic_dlq_offset": _MetricFamily(
        "dead letters that a group has ever had", ("cluster", "broker", "group"), _dead_letter_offsets
    ),
    "rocketmq_producer_count": _MetricFamily("producers of a group", ("cluster", "broker", "group"), _producers),
    "rocketmq_group_count": _MetricFamily("consumers of a group", ("caddr", "localaddr", "group"), _consumers),
    "rocketmq_group_diff": _MetricFamily(
        "messages that a group has not consumed",
        _OF_DIFFERENCE,
        _behind(lambda topic: not topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))),
    ),
    "rocketmq_group_retrydiff": _MetricFamily(
        "messages of its retry topic that a group has not consumed",
        _OF_DIFFERENCE,
        _behind(lambda topic: topic.startswith(RETRY_PREFIX)),
    ),
    "rocketmq_group_dlqdiff": _MetricFamily("dead letters of a group", _OF_DIFFERENCE, _dead_letters),
    "rocketmq_consumer_offset": _MetricFamily("messages of a topic, for a group", _OF_GROUP, _stored_for_groups),
    "rocketmq_group_consume_total_offset": _MetricFamily(
        "messages that a group has consumed", _OF_GROUP, _consumed_by_groups
    ),
    "rocketmq_group_get_latency_by_storetime": _MetricFamily(
        "how long, in ms, the oldest message that a group has not consumed has been waiting",
        _OF_GROUP,
        _group_latencies,
    ),
    "rocketmq_consumer_tps": _MetricFamily(
        "messages delivered to a group per second", _OF_GROUP, _shares_of_groups("delivered", as_rate=True)
    ),
    "rocketmq_consumer_message_size": _MetricFamily(
        "bytes delivered to a group in the last minute", _OF_GROUP, _shares_of_groups("delivered_bytes", as_rate=False)
    ),
    "rocketmq_send_back_nums": _MetricFamily(
        "messages that a group sent back in the last minute",
        _OF_GROUP,
        _shares_of_groups("sent_back", as_rate=False),
    ),
}

_KINDS |= {  # missing in the exporter
    "mqtool_replication_in_sync_count": _MetricFamily(
        "brokers that have the log of this master, itself included", ("cluster", "broker"), _replicas_in_sync
    ),
    "mqtool_replication_following": _MetricFamily(
        "1 if this slave follows its master, else 0 with the reason",
        ("cluster", "broker", "status", "reason"),
        _following,
    ),
    "mqtool_replication_tables_copied": _MetricFamily(
        "1 if this slave has copied all tables of its master the last time, else 0 with the reason",
        ("cluster", "broker", "reason"),
        _tables_copied,
    ),
    "mqtool_replication_tables_age_seconds": _MetricFamily(
        "how long ago this slave last copied all tables of its master; missing if it never has",
        ("cluster", "broker"),
        _tables_age,
    ),
    "mqtool_replication_lag_bytes": _MetricFamily(
        "bytes of the log that a slave has not acknowledged", _OF_SLAVE, _of_slaves(lambda slave: slave.lag)
    ),
    "mqtool_replication_lag_seconds": _MetricFamily(
        "how long a slave has been behind, in seconds",
        _OF_SLAVE,
        _of_slaves(lambda slave: None if slave.lag_ms is None else slave.lag_ms / 1000),
    ),
    "mqtool_replication_bytes_per_second": _MetricFamily(
        "bytes of the log sent to a slave in the last second",
        _OF_SLAVE,
        _of_slaves(lambda slave: slave.bytes_per_second),
    ),
}

_RUNTIME = {
    "msg_put_total_today_now": "msgPutTotalTodayNow",
    "msg_gettotal_today_now": "msgGetTotalTodayNow",
    "msg_puttotal_todaymorning": "msgPutTotalTodayMorning",
    "msg_puttotal_yesterdaymorning": "msgPutTotalYesterdayMorning",
    "msg_gettotal_todaymorning": "msgGetTotalTodayMorning",
    "msg_gettotal_yesterdaymorning": "msgGetTotalYesterdayMorning",
    "dispatch_behind_bytes": "dispatchBehindBytes",
    "put_message_size_total": "putMessageSizeTotal",
    "put_message_average_size": "putMessageAverageSize",
    "putmessage_times_total": "putMessageTimesTotal",
    "earliest_message_timestamp": "earliestMessageTimeStamp",
    "start_accept_sendrequest_time": "startAcceptSendRequestTimeStamp",
    "commitlog_disk_ratio": "commitLogDiskRatio",
    "consumequeue_disk_ratio": "consumeQueueDiskRatio",
    "commitlog_minoffset": "commitLogMinOffset",
    "commitlog_maxoffset": "commitLogMaxOffset",
    "remain_howmanydata_toflush": "remainHowManyDataToFlush",
    "remain_transientstore_buffer_numbs": "remainTransientStoreBufferNumbs",
    "send_threadpool_queue_size": "sendThreadPoolQueueSize",
    "pull_threadpoolqueue_size": "pullThreadPoolQueueSize",
    "query_threadpoolqueue_size": "queryThreadPoolQueueSize",
    "send_threadpoolqueue_capacity": "sendThreadPoolQueueCapacity",
    "pull_threadpoolqueue_capacity": "pullThreadPoolQueueCapacity",
    "query_threadpool_queue_capacity": "queryThreadPoolQueueCapacity",
}
"""Values of ``runtime_info``, by their names in the exporter."""

_RUNTIME_RATES = {
    "put_tps": "putTps",
    "gettotal_tps": "getTotalTps",
    "getfound_tps": "getFoundTps",
    "gettransfered_tps": "getTransferedTps",
}
_RATE_SECONDS = ("10", "60", "600")


def _runtime(broker: "BrokerController", now: int) -> Iterator[Gauge]:
    info = runtime_info(broker.store, broker.broker_stats, broker.delayed, now)
    labels = ("cluster", "brokerIP", "brokerHost", "des", "boottime", "broker_version")
    values = (
        broker.settings.cluster_name,
        broker.address,
        broker.address,
        info["brokerVersionDesc"],
        info["bootTimestamp"],
        info["brokerVersion"],
    )

    def gauge(name: str, info_key: str, value: float) -> Gauge:
        return Gauge(f"rocketmq_brokeruntime_{name}", f"{info_key} of mqadmin brokerStatus", labels, [(values, value)])

    for name, info_key in _RUNTIME.items():
        yield gauge(name, info_key, float(info[info_key].split()[0]))
    for name, info_key in _RUNTIME_RATES.items():
        for seconds, rate in zip(_RATE_SECONDS, info[info_key].split(), strict=True):
            yield gauge(f"{name}{seconds}", info_key, float(rate))
