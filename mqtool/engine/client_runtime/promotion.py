"""Promotes a slave to master of its broker name: a plan shows what would be lost and repeated, then it is carried out.

If the old master answers and is an mqtool broker, it stops accepting messages, the slave copies the rest, and they swap
roles. A RocketMQ master cannot be told to stop: it has to be stopped by hand first. No slave is promoted automatically.

Logs are the same up to where one ends if they have the same bytes before that: each record contains its own address and
time, so logs that have diverged do not become equal again.

Cost: some requests to each broker of the name, one for each queue of a group whose offset differs, and if the old
master is dead, one for each topic that groups read.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from mqtool.engine.client import calls
from mqtool.engine.client.routes import MASTER
from mqtool.engine.client_runtime.wire import together
from mqtool.engine.remoting.clock import wall_clock
from mqtool.errors import MqtoolError, NotFoundError, RefusedError, UnavailableError, UsageError
from mqtool.formats.topics import RETRY_PREFIX

if TYPE_CHECKING:
    from mqtool.engine.client_runtime.admin_client import AdminClient
    from mqtool.engine.client_runtime.admin_queries import BrokerPlace, BrokerStats

_CATCH_UP_SECONDS = 30.0
_COPY_SECONDS = 20.0
_SWAP_SECONDS = 90.0
_LOOK_SECONDS = 0.2
_MAX_GROUPS_TOLD = 20
_COMPARED_SIZE = 1 << 20
_OUR_SETTING = "haDialect"
"""Settings that only mqtool brokers have."""
_OF_SYNC_MASTER = ("inSyncReplicas", "haDialect")
"""Settings that say for how many slaves the sends of a SYNC_MASTER wait; each broker uses its own."""
_EPOCH, _STATUS, _UNCHECKED = "replicationEpoch", "replicationStatus", "replicationUnchecked"
_MASTER, _MISFIT = "replicationMaster", "replicationMisfit"
_BEGIN, _END = "commitLogMinOffset", "commitLogMaxOffset"


@dataclass(frozen=True)
class Promotion:
    """The broker to promote, and the consequences."""

    slave: "BrokerPlace"
    master: "BrokerPlace | None"  # the one that answers and swaps with the slave
    role: str  # of the new master
    epoch: int
    lag_bytes: int | None  # what the slave lacks, None if no master answers
    repeats: dict[str, int] = field(default_factory=dict)  # maximum number of messages by group; empty if the two swap
    remarks: list[str] = field(default_factory=list)


async def plan_promotion(
    admin: "AdminClient", broker_name: str, slave_id: int | None = None, clock: Callable[[], int] = wall_clock
) -> Promotion:
    """Plan to promote a slave: the one with an id, or the one with the longest log of those that match their master's.

    Each change of roles has a higher epoch than those known to the brokers that answer. If no master is among them,
    there may be higher ones elsewhere: then the epoch is the time in seconds.

    Raises:
        NotFoundError: there is no broker, or no slave, with that name or id.
        UnavailableError: no slave answers.
        RefusedError: the master refuses to answer: it is not dead, and cannot be told to stop.
        UsageError: it has to be done manually; the message says how.
    """
    places = [place for place in await admin.brokers() if place.broker_name == broker_name]
    if not places:
        raise NotFoundError(f"there is no broker {broker_name}")
    all_stats = await admin.broker_stats(places)
    master = await _master_of(admin, all_stats)
    slave = _chosen(broker_name, all_stats, slave_id)
    if _STATUS not in slave.stats:
        raise UsageError(
            f"slave {slave.broker.broker_id} of {broker_name} is a RocketMQ broker, which cannot be promoted "
            "remotely: stop it, set brokerRole=ASYNC_MASTER and brokerId=0, and start it; the old master must "
            "be stopped"
        )
    epoch = 1 + max(_epoch_of(broker_stats) for broker_stats in [*all_stats, *([master] if master else [])])
    if master is None:
        epoch = max(epoch, clock() // 1000)
        repeats = await _most_repeated(admin, slave.broker.address)
        remarks = await _of_other_slaves(admin, slave, all_stats)
        settings = await admin.request(slave.broker.address, calls.broker_settings())
        if (replicas := settings.get("inSyncReplicas", "1")) != "1":
            remarks.append(
                "the new master is an ASYNC_MASTER: its sends wait for no slave, whatever "
                f"inSyncReplicas={replicas} says, until it is restarted with brokerRole=SYNC_MASTER"
            )
        return _without_master(slave, epoch, repeats, remarks)
    settings = await admin.request(master.broker.address, calls.broker_settings())
    if _OUR_SETTING not in settings:
        raise UsageError(
            f"the master of {broker_name} ({master.broker.address}) is a RocketMQ broker, which cannot be "
            "told to stop accepting messages: stop it, and run this again; it may then rejoin with "
            "brokerRole=SLAVE and its own id"
        )
    if reason := slave.stats.get("replicationReason"):
        raise UsageError(f"slave {slave.broker.broker_id} of {broker_name} does not follow its master: {reason}")
    lag = max(int(master.stats[_END]) - int(slave.stats[_END]), 0)
    remarks = []
    if master.broker not in places:
        remarks.append(f"no name server knows the master {master.broker.address}, but a slave does, and it answers")
    remarks += [
        f"{master.broker.address} accepts no messages until {slave.broker.address} has the {lag:,} bytes that it lacks",
        "delayed messages of the last seconds may be delivered again",
    ]
    if (missing := _lacks_at_begin(slave, master)) > 0:
        remarks.append(
            f"the log of {slave.broker.address} begins {missing:,} bytes after that of {master.broker.address}: the "
            "messages before are lost to groups that have not consumed them yet, and not on the new master; a slave "
            "that starts on a copy of the master's store, or empty with haStartAtFirstByte=true, has them"
        )
    if reason := slave.stats.get(_UNCHECKED):
        remarks.append(f"the log of {slave.broker.address} was not compared with that of its master: {reason}")
    role = settings.get("brokerRole", "ASYNC_MASTER")
    if role == "SYNC_MASTER":
        slave_settings = await admin.request(slave.broker.address, calls.broker_settings())
        remarks += [
            f"{slave.broker.address} has {name}={slave_settings.get(name)}, {master.broker.address} has "
            f"{settings.get(name)}: sends may wait for another number of slaves than before"
            for name in _OF_SYNC_MASTER
            if slave_settings.get(name) != settings.get(name)
        ]
    return Promotion(slave.broker, master.broker, role, epoch, lag, {}, remarks)


async def _master_of(admin: "AdminClient", all_stats: "list[BrokerStats]") -> "BrokerStats | None":
    """Return the master that answers: the registered one, else one that slaves name; None if there is none.

    After a restart of a name server slaves may be registered again before their master is.

    Raises:
        RefusedError: it refuses.
        UsageError: there are two.
    """
    epoch = max(_epoch_of(broker_stats) for broker_stats in all_stats)
    known = {broker_stats.broker.address for broker_stats in all_stats}
    named = {
        broker_stats.broker._replace(broker_id=MASTER, address=address)
        for broker_stats in all_stats
        if (address := broker_stats.stats.get(_MASTER, "")) and address not in known
    }
    registered = [broker_stats for broker_stats in all_stats if broker_stats.broker.broker_id == MASTER]
    masters = [*registered, *await admin.broker_stats(sorted(named))]
    for broker_stats in masters:
        if isinstance(error := broker_stats.error, RefusedError):
            text = f"{error.remark or f'response code {error.code}'}; it may be the master, and no slave can replace it"
            raise type(error)(error.address, error.code, text)
    answering = [broker_stats for broker_stats in registered if not broker_stats.error]
    for broker_stats in masters[len(registered) :]:
        if broker_stats.error or _STATUS in broker_stats.stats or _epoch_of(broker_stats) < epoch:
            continue  # it is gone, or was replaced
        place = broker_stats.broker
        settings = await admin.request(place.address, calls.broker_settings())
        if settings.get("brokerName") == place.broker_name:
            answering.append(broker_stats)
    answering.sort(key=_epoch_of, reverse=True)
    if len(answering) > 1 and _epoch_of(answering[0]) == _epoch_of(answering[1]):
        addresses = " and ".join(broker_stats.broker.address for broker_stats in answering[:2])
        raise UsageError(f"{addresses} are both masters of {answering[0].broker.broker_name}: stop the wrong one first")
    return answering[0] if answering else None


def _epoch_of(broker_stats: "BrokerStats") -> int:
    return int(broker_stats.stats.get(_EPOCH, "0"))


def _chosen(broker_name: str, all_stats: "list[BrokerStats]", slave_id: int | None) -> "BrokerStats":
    slaves = [
        broker_stats
        for broker_stats in all_stats
        if broker_stats.broker.broker_id != MASTER and slave_id in (None, broker_stats.broker.broker_id)
    ]
    if not slaves:
        which = "slave" if slave_id is None else f"slave with the id {slave_id}"
        raise NotFoundError(f"{broker_name} has no {which}")
    answering = [broker_stats for broker_stats in slaves if not broker_stats.error]
    if not answering:
        raise UnavailableError(f"no slave of {broker_name} answers: {slaves[0].error}")
    return max(
        answering,
        key=lambda broker_stats: (
            not broker_stats.stats.get(_MISFIT),
            int(broker_stats.stats.get(_END, "0")),
            _STATUS in broker_stats.stats,  # it can be promoted, a RocketMQ broker cannot
        ),
    )


async def _most_repeated(admin: "AdminClient", slave: str) -> dict[str, int]:
    """Return how many messages of a slave follow the offsets of each group that it knows: no more are repeated."""
    offsets = await admin.request(slave, calls.consumer_offsets())
    ends: dict[str, dict[int, int]] = {}
    for topic in sorted({topic for topic, _, _ in offsets}):
        try:
            queues = await admin.request(slave, calls.topic_queues(topic))
        except RefusedError:  # a topic that is gone, except for its offsets
            continue
        ends[topic] = {queue_id: queue_ends.max_offset for queue_id, queue_ends in queues.items()}
    repeats: dict[str, int] = {}
    for (topic, group, queue_id), offset in offsets.items():
        behind = max(ends.get(topic, {}).get(queue_id, 0) - max(offset, 0), 0)
        repeats[group] = repeats.get(group, 0) + behind
    return {group: count for group, count in sorted(repeats.items()) if count}


def _lacks_at_begin(slave: "BrokerStats", other: "BrokerStats") -> int:
    """Return how many bytes another broker has before the first that a slave has; 0 or less for none."""
    end = min(int(slave.stats.get(_BEGIN, "0")), int(other.stats.get(_END, "0")))
    return end - max(int(other.stats.get(_BEGIN, "0")), 0)


async def _are_same(admin: "AdminClient", left: str, right: str, start: int, end: int) -> bool:
    """Return whether the logs of two mqtool brokers that both have a range are the same up to its end."""
    if start >= end:
        return True
    call = calls.log_checksum(max(start, end - _COMPARED_SIZE), end)
    checksums = [await admin.request(address, call) for address in (left, right)]
    return checksums[0] == checksums[1]


async def _of_other_slaves(admin: "AdminClient", slave: "BrokerStats", all_stats: "list[BrokerStats]") -> list[str]:
    """Return remarks on data that other slaves have, or may have, and that is lost if their master is dead."""
    remarks, end = [], int(slave.stats.get(_END, "0"))
    for other in all_stats:
        number = other.broker.broker_id
        if number in (MASTER, slave.broker.broker_id):
            continue
        if other.error:
            remarks.append(
                f"slave {number} does not answer: if it has more than slave {slave.broker.broker_id}, that is lost, "
                "and it will not follow"
            )
            continue
        if (missing := _lacks_at_begin(slave, other)) > 0:
            remarks.append(f"slave {number} has {missing:,} bytes of older messages: they are not on the new master")
        try:
            is_same = _STATUS not in other.stats or await _is_prefix(admin, slave, other)
        except MqtoolError as error:
            remarks.append(f"slave {number} was not compared with slave {slave.broker.broker_id}: {error}")
            continue
        if not is_same:
            remarks.append(
                f"slave {number} has other messages than slave {slave.broker.broker_id}: one of them is not a copy of "
                f"their master, compare them before you choose one with --slave; slave {number} will not follow"
            )
        elif (more := int(other.stats.get(_END, "0")) - end) > 0:
            remarks.append(
                f"slave {number} has {more:,} bytes more: they are lost, and it will not follow until its log is cut; "
                f"with --slave {number} they are kept"
            )
    return remarks


async def _is_prefix(admin: "AdminClient", slave: "BrokerStats", other: "BrokerStats") -> bool:
    """Return whether the shorter of the logs of two slaves is the beginning of the longer one, as far as both go."""
    begins = [int(broker_stats.stats.get(_BEGIN, "0")) for broker_stats in (slave, other)]
    ends = [int(broker_stats.stats.get(_END, "0")) for broker_stats in (slave, other)]
    return await _are_same(admin, slave.broker.address, other.broker.address, max(*begins, 0), min(ends))


def _without_master(slave: "BrokerStats", epoch: int, repeats: dict[str, int], remarks: list[str]) -> Promotion:
    copied = slave.stats.get("replicationCopiedTimestamp", "0")
    number = slave.broker.broker_id
    misfit = slave.stats.get(_MISFIT)
    remarks = [
        *([f"slave {number} is not a copy of its master, whose messages are lost: {misfit}"] if misfit else []),
        *remarks,
        "no master answers: messages that it had and the slave does not have are lost; how many is unknown",
        "if it is still running, cut off from here, stop it first: otherwise there are two masters",
    ]
    if repeats or copied == "0":
        since = f" ({_time(int(copied))})" if copied != "0" else " (not since it was started)"
        remarks.append(f"groups will repeat what they have consumed since the slave last copied their offsets{since}")
    else:
        when = _time(int(copied))
        remarks.append(
            f"no group that has consumed before {when} repeats messages: their offsets, copied then, are at the ends "
            "of the queues"
        )
    by_count = sorted(repeats, key=lambda group: -repeats[group])
    remarks += [f"group {group} repeats at most {repeats[group]:,} messages" for group in by_count[:_MAX_GROUPS_TOLD]]
    if (more := len(by_count) - _MAX_GROUPS_TOLD) > 0:
        remarks.append(f"{more:,} more groups repeat fewer each")
    return Promotion(slave.broker, None, "ASYNC_MASTER", epoch, None, repeats, remarks)


def _time(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="seconds")


async def promote(admin: "AdminClient", plan: Promotion, say: Callable[[str], None]) -> None:
    """Carry out a plan; ``say`` is called with each completed step.

    Raises:
        UnavailableError: the slave does not catch up in time, and nothing was changed; or it does not come back as
            master, though it was told to, and the old master accepts no messages.
        MqtoolError: a broker refuses, and nothing was changed.
    """
    slave, master = plan.slave, plan.master
    become = calls.change_role("become", plan.role, MASTER, plan.epoch)
    if master is not None:
        # While it still accepts messages: the slave copies such tables every ten seconds.
        late = await _not_copied(admin, master.address, slave.address, _COPY_SECONDS)
        end = await admin.request(master.address, calls.change_role("stop", "", slave.broker_id, plan.epoch))
        try:
            await _until_it_has(admin, slave.address, end)
            await _check_copy(admin, master.address, slave.address, end)
            say(f"{slave.address} has everything up to {end:,}")
            if late := await _not_copied(admin, master.address, slave.address, 0 if late else _COPY_SECONDS):
                names = ", ".join(late[:_MAX_GROUPS_TOLD])
                text = "has not copied the last changes of these topics and groups, which are lost"
                say(f"{slave.address} {text}: {names}")
            moved = await _copy_offsets(admin, master.address, slave.address)
            say(f"copied consumer offsets: {moved:,} of them had changed since the slave last copied them")
        except BaseException:
            await admin.request(master.address, calls.change_role("go on"))
            raise
        try:
            await admin.request(slave.address, become)
        except MqtoolError as error:
            if isinstance(error, RefusedError) or not await _has_become(admin, plan, master.address):
                await admin.request(master.address, calls.change_role("go on"))
                raise
        await admin.request(master.address, calls.change_role("become", "SLAVE", slave.broker_id, plan.epoch))
    else:
        await admin.request(slave.address, become)
    await _until_master(admin, slave, plan.epoch)
    say(f"{slave.address} is now the master of {slave.broker_name}")
    if master is not None:
        say(f"{master.address} is now its slave {slave.broker_id}")


async def _has_become(admin: "AdminClient", plan: Promotion, master: str) -> bool:
    """Return whether a slave accepted the order to become master, although it did not answer.

    Raises:
        UnavailableError: it does not answer: the old master must not continue, as there might be two.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _SWAP_SECONDS
    while True:
        try:
            return int((await admin.request(plan.slave.address, calls.runtime_info())).get(_EPOCH, "0")) >= plan.epoch
        except UnavailableError:
            if loop.time() > deadline:
                raise UnavailableError(
                    f"{plan.slave.address} was told to become master and no longer answers; {master} accepts no "
                    "messages: after a restart it finds out which of them is the master"
                ) from None
        await asyncio.sleep(_LOOK_SECONDS)


async def _until_it_has(admin: "AdminClient", address: str, end: int) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _CATCH_UP_SECONDS
    while True:
        slave_end = int((await admin.request(address, calls.runtime_info())).get(_END, "0"))
        if slave_end >= end:
            return
        if loop.time() > deadline:
            lack = f"{end - slave_end:,} bytes"
            raise UnavailableError(f"{address} still lacks {lack} after {_CATCH_UP_SECONDS:.0f} s; nothing was changed")
        await asyncio.sleep(_LOOK_SECONDS)


async def _check_copy(admin: "AdminClient", master: str, slave: str, end: int) -> None:
    """Check that a slave has the log of its master, and nothing else.

    Raises:
        UnavailableError: it has not: it followed without a comparison, or other messages are at the master's addresses.
    """
    stats = [await admin.request(address, calls.runtime_info()) for address in (master, slave)]
    start = max(0, *(int(broker_stats.get(_BEGIN, "0")) for broker_stats in stats))
    if int(stats[1].get(_END, "0")) != end or not await _are_same(admin, master, slave, start, end):
        raise UnavailableError(
            f"{slave} has other messages than {master}: those of its master would be lost; nothing was changed"
        )


async def _not_copied(admin: "AdminClient", master: str, slave: str, seconds: float) -> list[str]:
    """Wait until a slave has topics and groups as its master has them; returns those that still differ in the end."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while True:
        topics, slave_topics = [await admin.request(address, calls.topic_configs()) for address in (master, slave)]
        groups, slave_groups = [await admin.request(address, calls.groups()) for address in (master, slave)]
        # A slave comes to know groups of its own consumers, and makes their retry topics.
        differing = {topic for topic, config in topics.items() if slave_topics.get(topic) != config}
        differing |= {topic for topic in slave_topics.keys() - topics.keys() if not topic.startswith(RETRY_PREFIX)}
        differing |= {group for group, members in groups.items() if slave_groups.get(group) != members}
        if not differing or loop.time() >= deadline:
            return sorted(differing)
        await asyncio.sleep(_LOOK_SECONDS)


async def _copy_offsets(admin: "AdminClient", master: str, slave: str) -> int:
    """Copy the consumer offsets of a master to its slave, and return how many had changed."""
    master_offsets = await admin.request(master, calls.consumer_offsets())
    slave_offsets = await admin.request(slave, calls.consumer_offsets())
    late = {key: offset for key, offset in master_offsets.items() if slave_offsets.get(key) != offset}
    deadline = asyncio.get_running_loop().time() + _COPY_SECONDS

    async def copy(key: tuple[str, str, int]) -> None:
        topic, group, queue_id = key
        while True:
            try:
                await admin.request(slave, calls.set_offset(group, topic, queue_id, late[key]))
                return
            except RefusedError:  # it does not know the group yet: it copies such tables every ten seconds
                if asyncio.get_running_loop().time() > deadline:
                    raise
                await asyncio.sleep(_LOOK_SECONDS)

    await together(copy(key) for key in late)  # nobody can send in the meantime
    return len(late)


async def _until_master(admin: "AdminClient", slave: "BrokerPlace", epoch: int) -> None:
    """Wait until name servers report a slave as master.

    Raises:
        UnavailableError: they do not, or it was replaced by another promotion since.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _SWAP_SECONDS
    while True:
        try:
            masters = await admin.masters(slave.broker_name)
            is_master = any(master.address == slave.address for master in masters)
            known_epoch = int((await admin.request(slave.address, calls.runtime_info())).get(_EPOCH, "0"))
        except MqtoolError:  # it is just becoming master
            is_master, known_epoch = False, 0
        if known_epoch > epoch:
            raise UnavailableError(
                f"{slave.address} became the master at epoch {epoch}, and there has been another promotion since, to "
                f"epoch {known_epoch}: `mqtool cluster show {slave.broker_name}` shows which broker is the master"
            )
        if is_master:
            return
        if loop.time() > deadline:
            raise UnavailableError(
                f"{slave.address} was told to become master, but name servers do not report it as such yet"
            )
        await asyncio.sleep(_LOOK_SECONDS)
