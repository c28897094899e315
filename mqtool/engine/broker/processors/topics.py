"""Topics: created, changed, listed and deleted by administrators.

(Rules: remoting.md 3.5. RocketMQ: ``AdminBrokerProcessor``.)
"""

from typing import TYPE_CHECKING

from mqtool.errors import FormatError
from mqtool.formats.bodies import build_body, build_topic_list, parse_body, topic_members, version_members
from mqtool.formats.codes import RequestCode
from mqtool.formats.config_tables import TopicConfig
from mqtool.formats.config_tables import topics as parse_topics
from mqtool.formats.headers import CreateTopic, TopicName, parse_header

if TYPE_CHECKING:
    from mqtool.engine.broker.broker import BrokerController
    from mqtool.engine.broker.processors.request import Answer, BrokerRequest, Processor


def _create(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    header = parse_header(CreateTopic, request.command.ext_fields)
    known = broker.topics.get(header.topic)
    config = TopicConfig(
        topic=header.topic,
        read_queue_count=header.read_queue_nums,
        write_queue_count=header.write_queue_nums,
        perm=header.perm,
        order=header.order,
        filter_type=header.topic_filter_type,
        sys_flag=header.topic_sys_flag,
        attributes=_changed(dict(known.attributes) if known else {}, header.attributes or ""),
    )
    broker.topic_requests.put([config], request.now)
    return request.command.answer()


def _changed(attributes: dict[str, str], changes: str) -> dict[str, str]:
    """Return attributes after changes like ``+cleanup.policy=COMPACTION,-message.type``.

    Raises:
        FormatError: the changes are not of that form.
    """
    for change in filter(None, changes.split(",")):
        sign, (name, equals, value) = change[0], change[1:].partition("=")
        if sign == "+" and name and equals:
            attributes[name] = value
        elif sign == "-" and name and not equals:
            attributes.pop(name, None)
        else:
            raise FormatError(f"{change} is not a change of an attribute", offset=0)
    return attributes


def _create_some(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    listed = parse_body(request.command.body).get("topicConfigList") or []
    if not isinstance(listed, list) or not all(isinstance(item, dict) for item in listed):
        raise FormatError("topicConfigList is not a list of topics", offset=0)
    table = {"topicConfigTable": {str(config.get("topicName") or ""): config for config in listed}}
    broker.topic_requests.put([*parse_topics(table).values()], request.now)
    return request.command.answer()


def _delete(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    broker.topic_requests.delete([parse_header(TopicName, request.command.ext_fields).topic], request.now)
    return request.command.answer()


def _delete_some(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    broker.topic_requests.delete(names_in(request.command.body, "topicList"), request.now)
    return request.command.answer()


def names_in(body: bytes, member: str) -> list[str]:
    """Return the names that a member of a body lists.

    Raises:
        FormatError: it is not a list of names.
    """
    listed = parse_body(body).get(member)
    if not isinstance(listed, list) or not all(isinstance(item, str) for item in listed):
        raise FormatError(f"{member} is not a list of names", offset=0)
    return listed


def _list(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    topics = broker.topics
    body = build_body(
        {
            "dataVersion": version_members(topics.version),
            "topicConfigTable": {name: topic_members(config) for name, config in topics.configs.items()},
        }
    )
    fields = {"totalTopicNum": str(len(topics.configs))}
    return request.command.answer(ext_fields=fields, body=body)


def _get(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    config = broker.topic_requests.find(parse_header(TopicName, request.command.ext_fields).topic)
    return request.command.answer(body=build_body(topic_members(config)))


def _list_system(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    names = [name for name in broker.topics.configs if broker.topics.is_system(name)]
    return request.command.answer(body=build_topic_list(names))


PROCESSORS: "dict[int, Processor]" = {
    RequestCode.UPDATE_AND_CREATE_TOPIC: _create,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: _create_some,
    RequestCode.DELETE_TOPIC_IN_BROKER: _delete,
    RequestCode.DELETE_TOPIC_IN_BROKER_LIST: _delete_some,
    RequestCode.GET_ALL_TOPIC_CONFIG: _list,
    RequestCode.GET_TOPIC_CONFIG: _get,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: _list_system,
}
