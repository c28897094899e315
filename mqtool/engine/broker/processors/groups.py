"""Subscription groups: created, listed, deleted, forbidden to read.

(Rules: remoting.md 3.5. RocketMQ: ``AdminBrokerProcessor``.)
"""

from typing import TYPE_CHECKING

from mqtool.engine.broker.processors.topics import names_in
from mqtool.errors import FormatError
from mqtool.formats.bodies import build_body, parse_body
from mqtool.formats.codes import RequestCode
from mqtool.formats.headers import DeleteGroup, GroupForbidden, GroupName, parse_header

if TYPE_CHECKING:
    from mqtool.engine.broker.broker import BrokerController
    from mqtool.engine.broker.processors.request import Answer, BrokerRequest, Processor


def update(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    """Create or change a group."""
    broker.group_requests.update([parse_body(request.command.body)], request.now)
    return request.command.answer()


def update_list(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    """Create or change several groups, none of them if one has an invalid name."""
    tables = parse_body(request.command.body).get("groupConfigList")
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise FormatError("groupConfigList is not a list of groups", offset=0)
    broker.group_requests.update(tables, request.now)
    return request.command.answer()


def get_all(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    """Return all groups."""
    table = broker.groups.table()
    fields = {"totalGroupNum": str(len(table["subscriptionGroupTable"]))}
    return request.command.answer(ext_fields=fields, body=build_body(table))


def get(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    """Return one group."""
    members = broker.group_requests.find(parse_header(GroupName, request.command.ext_fields).group)
    return request.command.answer(body=build_body(members))


def delete(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    """Delete a group, and its offsets if requested."""
    group, clean_offset, remove_offset = parse_header(DeleteGroup, request.command.ext_fields)
    broker.group_requests.delete([group], request.now, with_offsets=clean_offset or remove_offset)
    return request.command.answer()


def delete_list(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    """Delete several groups, and their offsets if requested."""
    body = request.command.body
    with_offsets = parse_body(body).get("cleanOffset") is True
    broker.group_requests.delete(names_in(body, "groupNameList"), request.now, with_offsets=with_offsets)
    return request.command.answer()


def forbid(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    """Return whether a group may read a topic, after changing it if requested."""
    group, topic, change = parse_header(GroupForbidden, request.command.ext_fields)
    readable = broker.group_requests.forbid(group, topic, change, request.now)
    return request.command.answer(body=build_body({"group": group, "readable": readable, "topic": topic}))


PROCESSORS: "dict[int, Processor]" = {
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: update,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: update_list,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: get_all,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: get,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: delete,
    RequestCode.DELETE_SUBSCRIPTION_GROUP_LIST: delete_list,
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: forbid,
}
