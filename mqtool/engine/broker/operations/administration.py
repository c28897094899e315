"""The broker itself: its runtime information, its settings, half messages that are checked again.

(Rules: remoting.md 3.5 to 3.8. RocketMQ: ``AdminBrokerProcessor``.)
"""

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from mqtool.engine.broker.broker_stats import BrokerStatsManager
from mqtool.engine.broker.delayed import DelayedMessages
from mqtool.engine.broker.limits import MAX_OF_SETTING
from mqtool.engine.broker.operations.queues import next_offset_of
from mqtool.engine.broker.operations.refusal import OperationRefusedError, Reason
from mqtool.engine.broker.settings import AT_START, BrokerSettings
from mqtool.engine.broker.state import BrokerState
from mqtool.engine.broker.transactions import Transactions
from mqtool.engine.store.append_result import PutStatus
from mqtool.engine.store.message_store import CHANGEABLE
from mqtool.engine.store.paths import STORE_SETTINGS
from mqtool.engine.store.retention import disk_usage
from mqtool.errors import FormatError, NotFoundError, UsageError
from mqtool.formats.codes import Version
from mqtool.formats.hosts import parse_message_id
from mqtool.formats.topics import SCHEDULE_TOPIC

if TYPE_CHECKING:
    from mqtool.engine.store.message_store import MessageStore

_PROTECTED = ("configBlackList", "brokerConfigPath", "rocketmqHome", "storePath")
"""Prefixes of settings that no request may change: with a path in them, a client could write files."""
_SECRET = {"innerClientAuthenticationCredentials"}
_QUEUES_OF_THREADS = {
    "send": 10_000,
    "pull": 100_000,
    "litePull": 100_000,
    "query": 20_000,
    "ack": 100_000,
}
"""The queues of RocketMQ's threads and their lengths; here nothing waits, but tools expect the values."""
_SEPARATORS = frozenset("\0\1\2")
"""The separators between the properties of a message."""
_AT_START = AT_START | (STORE_SETTINGS - CHANGEABLE)


class SettingRequests:
    """The settings of a broker and its store, queried and changed at runtime."""

    def __init__(self, store: "MessageStore", state: BrokerState, configure: Callable[[BrokerSettings], None]) -> None:
        self._store = store
        self._state = state
        self._configure = configure

    def all(self) -> dict[str, str]:
        """Return all settings by RocketMQ's names."""
        segment_size = {"mappedFileSizeCommitLog": str(self._store.log.file_size)}  # slaves compare it with their own
        texts = self._state.settings.texts()
        return {**self._store.config.settings, **segment_size, **{name: texts[name] for name in texts.keys() - _SECRET}}

    def change(self, changes: Mapping[str, str]) -> None:
        """Change settings, none of them if one cannot be changed.

        Raises:
            OperationRefusedError: one cannot be changed.
        """
        if any(name.startswith(_PROTECTED) for name in changes):
            raise OperationRefusedError(Reason.NOT_ALLOWED, "Can not update config in black list.")
        for name, value in changes.items():
            if len(value) > MAX_OF_SETTING or not _SEPARATORS.isdisjoint(value):
                text = f"{name[:MAX_OF_SETTING]} may have at most {MAX_OF_SETTING} characters, and none below \\x03"
                raise OperationRefusedError(Reason.BAD_ARGUMENT, text)
        of_store = {name: value for name, value in changes.items() if name in CHANGEABLE}
        of_broker = {name: value for name, value in changes.items() if name not in CHANGEABLE}
        try:
            settings, unknown = self._state.settings.updated(of_broker)
            if unknown := sorted({*unknown} - STORE_SETTINGS):
                raise UsageError(f"without effect here: {', '.join(unknown)}")
            present = self.all()
            if late := [name for name in changes if name in _AT_START and changes[name] != present.get(name)]:
                raise UsageError(f"can be changed only at startup: {', '.join(late)}")
            self._store.configure(of_store)
        except UsageError as error:
            raise OperationRefusedError(Reason.BAD_ARGUMENT, str(error)) from None
        self._configure(settings)


def resume_check(transactions: Transactions, message_id: str, now: int) -> None:
    """Resume the checks of a half message that was put aside.

    Raises:
        OperationRefusedError: it cannot be.
    """
    try:
        status = transactions.resume(parse_message_id(message_id), now)
    except (FormatError, NotFoundError) as error:
        text = f"{message_id} cannot be checked again: {error}"
        raise OperationRefusedError(Reason.NOT_POSSIBLE, text) from None
    if status is not PutStatus.PUT_OK:
        raise OperationRefusedError(Reason.NOT_POSSIBLE, f"{message_id} cannot be stored again: {status}")


def runtime_info(
    store: "MessageStore", broker_stats: BrokerStatsManager, delayed: DelayedMessages, now: int
) -> dict[str, str]:
    """Return the runtime information of a broker, by RocketMQ's names."""
    log = store.log
    used = f"{disk_usage(store.root):.2f}"
    size = log.end_offset - log.min_offset
    stored, delivered_rates = (
        " ".join(map(str, rates)) for rates in (broker_stats.stored_rates(now), broker_stats.delivered_rates(now))
    )
    status = os.statvfs(store.root)
    total, free = status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize
    info = {
        "brokerVersionDesc": "V4_9_8",
        "brokerVersion": str(int(Version.V4_9_8)),
        "brokerActive": "true",
        "bootTimestamp": str(broker_stats.started),
        "runtime": _span(now - broker_stats.started),
        "startAcceptSendRequestTimeStamp": "0",
        "msgPutTotalYesterdayMorning": str(broker_stats.mornings[0].stored),
        "msgPutTotalTodayMorning": str(broker_stats.mornings[1].stored),
        "msgPutTotalTodayNow": str(broker_stats.stored),
        "msgGetTotalYesterdayMorning": str(broker_stats.mornings[0].delivered),
        "msgGetTotalTodayMorning": str(broker_stats.mornings[1].delivered),
        "msgGetTotalTodayNow": str(broker_stats.delivered),
        "putTps": stored,
        "getTotalTps": delivered_rates,
        "getFoundTps": delivered_rates,
        "getMissTps": "0.0 0.0 0.0",
        "getTransferredTps": delivered_rates,  # the name in 5.x
        "getTransferedTps": delivered_rates,  # the name in 4.9
        "putMessageTimesTotal": str(broker_stats.stored),
        "putMessageSizeTotal": str(size),
        "putMessageAverageSize": str(size / max(broker_stats.stored, 1)),
        "putMessageFailedTimes": "0",
        "putMessageEntireTimeMax": "0",
        "getMessageEntireTimeMax": "0",
        "putMessageDistributeTime": "",
        "putLatency99": "0.0",
        "putLatency999": "0.0",
        "pageCacheLockTimeMills": "0",
        "earliestMessageTimeStamp": str(store.earliest_timestamp()),
        "commitLogMinOffset": str(log.min_offset),
        "commitLogMaxOffset": str(log.end_offset),
        "commitLogDirCapacity": f"Total : {_gib(total)}, Free : {_gib(free)}.",
        "commitLogDiskRatio": used,
        "consumeQueueDiskRatio": used,
        "remainHowManyDataToFlush": f"{log.end_offset - log.flushed_offset} B",
        "remainTransientStoreBufferNumbs": "2147483647",
        "dispatchBehindBytes": "0",
        "dispatchMaxBuffer": "0",
        "EndTransactionQueueSize": "0",
        "EndTransactionThreadPoolQueueCapacity": "100000",
        "timerReadBehind": "0",
        "timerOffsetBehind": "0",
        "timerCongestNum": "0",
        "timerEnqueueTps": "0.0",
        "timerDequeueTps": "0.0",
    }
    for name, capacity in _QUEUES_OF_THREADS.items():
        info[f"{name}ThreadPoolQueueSize"] = "0"
        info[f"{name}ThreadPoolQueueCapacity"] = str(capacity)
        info[f"{name}ThreadPoolQueueHeadWaitTimeMills"] = "0"
    for level, offset in delayed.offsets.items():
        info[f"scheduleMessageOffset_{level}"] = f"{offset},{next_offset_of(store, SCHEDULE_TOPIC, level - 1)}"
    return info


def _span(ms: int) -> str:
    minutes, seconds = divmod(ms // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    return f"[ {hours // 24} days, {hours % 24} hours, {minutes} minutes, {seconds} seconds ]"


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB"
