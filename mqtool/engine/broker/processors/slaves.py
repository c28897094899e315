"""Requests of slaves, and about slaves, to a master.

(Rules: remoting.md 3.8. RocketMQ: ``AdminBrokerProcessor``, ``HAService``.)
"""

from typing import TYPE_CHECKING

from mqtool.engine.broker.operations.log_checksums import log_checksums
from mqtool.engine.broker.operations.refusal import OperationRefusedError, Reason
from mqtool.engine.broker.settings import Role
from mqtool.formats.bodies import build_body, version_members
from mqtool.formats.codes import RequestCode, ResponseCode
from mqtool.formats.config_tables import DataVersion
from mqtool.formats.headers import ChangeRole, LogBlocks, parse_header

if TYPE_CHECKING:
    from mqtool.engine.broker.broker import BrokerController
    from mqtool.engine.broker.processors.request import Answer, BrokerRequest, Processor


def ha_status(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    """Return the progress of the slaves, or the replication state of a slave."""
    slaves, following, end_offset = broker.slaves, broker.following, broker.store.end_offset
    is_slave = broker.state.role is Role.SLAVE
    connections = [
        {
            "addr": status.address,
            "diff": status.lag,
            "inSync": status.is_in_sync,
            "slaveAckOffset": status.acknowledged_offset,
            "transferFromWhere": status.next_offset,
            "transferredByteInSecond": status.bytes_per_second,
            "lagMillis": status.lag_ms,  # ours: RocketMQ has bytes only, and its tools ignore unknown fields
            "fault": status.fault,  # ours
        }
        for status in (slaves.statuses(request.now) if slaves else ())
    ]
    body = {
        "haClientRuntimeInfo": {
            **({"masterAddr": following.ha_address} if is_slave else {}),
            "lastReadTimestamp": following.last_read_timestamp,
            "lastWriteTimestamp": following.last_write_timestamp,
            "masterFlushOffset": 0,
            "maxOffset": end_offset if is_slave else 0,
            "transferredByteInSecond": following.bytes_per_second,
            **({"status": following.status, "reason": following.reason} if is_slave else {}),  # ours
        },
        "haConnectionInfo": connections,
        "inSyncSlaveNums": slaves.in_sync_count() if slaves else 0,
        "master": not is_slave,
        "masterCommitLogMaxOffset": 0 if is_slave else end_offset,
    }
    return request.command.answer(body=build_body(body))


def timer_check_point(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    """Return the progress of the delivery of timer messages."""
    if not broker.settings.timer_enabled:
        return request.command.answer(ResponseCode.SYSTEM_ERROR, remark="The checkpoint is null")
    return request.command.answer(body=broker.timers.check_point())


def timer_metrics(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    """Return how many timer messages wait for each topic: RocketMQ counts them, but no counts are kept here."""
    if not broker.settings.timer_enabled:
        return request.command.answer(ResponseCode.SYSTEM_ERROR, remark="The timer message store is null")
    version = version_members(DataVersion(0, broker.broker_stats.started, 0))
    return request.command.answer(body=build_body({"dataVersion": version, "timingCount": {}}))


def reset_flush_offset(broker: "BrokerController", request: "BrokerRequest") -> "Answer":  # noqa: ARG001
    """Reset the master's flushed offset: a master knows its own, so nothing changes."""
    return request.command.answer()


def checksums(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    """Return the checksums of blocks of the log."""
    start, end, size = parse_header(LogBlocks, request.command.ext_fields)
    return request.command.answer(body=build_body({"checksums": log_checksums(broker.store, start, end, size)}))


def change_role(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    """Make this broker stop or resume accepting messages, or restart in another role; return the end of its log."""
    step, role, broker_id, epoch = parse_header(ChangeRole, request.command.ext_fields)
    changes = broker.role_changes
    if step == "stop":
        end = changes.stop_messages(broker_id, epoch)
    elif step == "go on":
        end = changes.take_messages()
    elif step == "become" and role in {*Role}:
        end = changes.become(Role(role), broker_id, epoch)
    else:
        raise OperationRefusedError(Reason.BAD_ARGUMENT, f"there is no step {step!r} to {role!r}")
    return request.command.answer(ext_fields={"maxOffset": str(end)})


PROCESSORS: "dict[int, Processor]" = {
    RequestCode.GET_BROKER_HA_STATUS: ha_status,
    RequestCode.GET_TIMER_CHECK_POINT: timer_check_point,
    RequestCode.GET_TIMER_METRICS: timer_metrics,
    RequestCode.CHANGE_ROLE: change_role,
    RequestCode.GET_LOG_CHECKSUMS: checksums,
    RequestCode.RESET_MASTER_FLUSH_OFFSET: reset_flush_offset,
}
