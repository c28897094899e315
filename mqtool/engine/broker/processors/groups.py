"""Subscription groups: made, listed, deleted, forbidden to read.

(Rules: remoting.md 3.5. RocketMQ: ``AdminBrokerProcessor``.)
"""

from typing import TYPE_CHECKING

from mqtool.engine.broker.processors.topics import names_in
from mqtool.engine.broker.subscription_groups import MOST_GIVEN_NAME, is_name
from mqtool.engine.broker.topics import MOST_QUEUES
from mqtool.errors import FormatError
from mqtool.formats.bodies import build_body, parse_body
from mqtool.formats.codes import RequestCode, ResponseCode
from mqtool.formats.config_tables import Table
from mqtool.formats.headers import DeleteGroup, GroupForbidden, GroupName, parse_header

if TYPE_CHECKING:
    from mqtool.engine.broker.broker import Broker
    from mqtool.engine.broker.processors.request import Answer, Processor, Request


def update(broker: "Broker", request: "Request") -> "Answer":
    """Make a group, or change one."""
    return _update(broker, request, [parse_body(request.command.body)])


def update_list(broker: "Broker", request: "Request") -> "Answer":
    """Make or change several groups, none of them if one has no proper name."""
    given = parse_body(request.command.body).get("groupConfigList")
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        raise FormatError("groupConfigList is no list of groups", offset=0)
    return _update(broker, request, given)


def _update(broker: "Broker", request: "Request", given: list[Table]) -> "Answer":
    for one in given:
        name = str(one.get("groupName") or "")
        if not is_name(name, MOST_GIVEN_NAME):
            remark = f"the group name [{name[:200]}] is blank, longer than {MOST_GIVEN_NAME} or has characters other"
            return request.command.answer(ResponseCode.INVALID_PARAMETER, remark=f"{remark} than %|a-zA-Z0-9_-")
    for one in given:
        count = one.get("retryQueueNums") or 0
        if not isinstance(count, int) or count > MOST_QUEUES:
            remark = f"retryQueueNums of the group [{one['groupName']}] is no number up to {MOST_QUEUES:,}"
            return request.command.answer(ResponseCode.INVALID_PARAMETER, remark=remark)
    for one in given:
        broker.groups.update(one, request.now)
    return request.command.answer()


def get_all(broker: "Broker", request: "Request") -> "Answer":
    """Return all groups."""
    table = broker.groups.table()
    fields = {"totalGroupNum": str(len(table["subscriptionGroupTable"]))}
    return request.command.answer(ext_fields=fields, body=build_body(table))


def get(broker: "Broker", request: "Request") -> "Answer":
    """Return one group."""
    name = parse_header(GroupName, request.command.ext_fields).group
    if (members := broker.groups.members(name)) is None:
        remark = f"No group in this broker. group: {name}"
        return request.command.answer(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark=remark)
    return request.command.answer(body=build_body(members))


def delete(broker: "Broker", request: "Request") -> "Answer":
    """Forget a group, and its offsets where that is asked for."""
    header = parse_header(DeleteGroup, request.command.ext_fields)
    return _delete(broker, request, [header.group_name], with_offsets=header.clean_offset or header.remove_offset)


def delete_list(broker: "Broker", request: "Request") -> "Answer":
    """Forget several groups, and their offsets where that is asked for."""
    body = request.command.body
    with_offsets = parse_body(body).get("cleanOffset") is True
    return _delete(broker, request, names_in(body, "groupNameList"), with_offsets=with_offsets)


def _delete(broker: "Broker", request: "Request", groups: list[str], *, with_offsets: bool) -> "Answer":
    for group in groups:
        broker.groups.delete(group, request.now)
        if with_offsets:
            broker.offsets.delete_group(group)
    return request.command.answer()


def forbid(broker: "Broker", request: "Request") -> "Answer":
    """Tell whether a group may read a topic, after changing that where it is asked for."""
    header = parse_header(GroupForbidden, request.command.ext_fields)
    if header.readable is not None:
        broker.groups.set_readable(header.group, header.topic, header.readable, request.now)
    readable = broker.groups.is_readable(header.group, header.topic)
    body = build_body({"group": header.group, "readable": readable, "topic": header.topic})
    return request.command.answer(body=body)


PROCESSORS: "dict[int, Processor]" = {
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: update,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: update_list,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: get_all,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: get,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: delete,
    RequestCode.DELETE_SUBSCRIPTION_GROUP_LIST: delete_list,
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: forbid,
}
