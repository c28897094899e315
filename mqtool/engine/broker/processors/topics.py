"""Topics made, changed, listed and deleted by administrators.

(Rules: remoting.md 3.5. RocketMQ: ``AdminBrokerProcessor``.)
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from mqtool.engine.broker.topics import MOST_QUEUES, fault_of_name
from mqtool.errors import FormatError, HeaderError
from mqtool.formats.bodies import build_body, build_topic_list, parse_body, topic_members, version_members
from mqtool.formats.codes import RequestCode, ResponseCode
from mqtool.formats.config_tables import TopicConfig
from mqtool.formats.config_tables import topics as parse_topics
from mqtool.formats.headers import CreateTopic, TopicName, parse_header
from mqtool.formats.remoting import RemotingCommand

if TYPE_CHECKING:
    from mqtool.engine.broker.broker import Broker
    from mqtool.engine.broker.processors.request import Answer, Processor, Request


def _create(broker: "Broker", request: "Request") -> "Answer":
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
    return _answer(request, _put(broker, [config], request))


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
            raise FormatError(f"{change} is no change of an attribute", offset=0)
    return attributes


def _create_some(broker: "Broker", request: "Request") -> "Answer":
    listed = parse_body(request.command.body).get("topicConfigList") or []
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise FormatError("topicConfigList is no list of topics", offset=0)
    table = {"topicConfigTable": {str(one.get("topicName") or ""): one for one in listed}}
    return _answer(request, _put(broker, parse_topics(table).values(), request))


def _put(broker: "Broker", configs: Iterable[TopicConfig], request: "Request") -> str | None:
    """Make or change topics; return what is wrong with one of them, in which case none is.

    Raises:
        HeaderError: a topic that is there would get another type of queue.
    """
    configs = list(configs)
    for config in configs:
        if fault := _fault(broker, config.topic):
            return fault
        if max(config.read_queue_count, config.write_queue_count) > MOST_QUEUES:
            return f"The topic[{config.topic}] would have more than {MOST_QUEUES:,} queues."
        known = broker.topics.get(config.topic)
        if known is not None and known.is_batch != config.is_batch:  # its queues lie in other files then
            raise HeaderError("attributes", f"changes queue.type of the topic {config.topic}, which is there already")
    broker.topics.put(configs, request.now)
    return None


def _fault(broker: "Broker", topic: str) -> str | None:
    if broker.topics.is_system(topic):
        return f"The topic[{topic}] is conflict with system topic."
    return fault_of_name(topic)


def _delete(broker: "Broker", request: "Request") -> "Answer":
    return _delete_each(broker, request, [parse_header(TopicName, request.command.ext_fields).topic])


def _delete_some(broker: "Broker", request: "Request") -> "Answer":
    return _delete_each(broker, request, names_in(request.command.body, "topicList"))


def _delete_each(broker: "Broker", request: "Request", topics: list[str]) -> "Answer":
    """Delete topics, none of them if one may not be deleted."""
    for topic in topics:
        if not topic.strip():
            return _answer(request, "The specified topic is blank.")
        if broker.topics.is_system(topic):
            return _answer(request, f"The topic[{topic}] is conflict with system topic.")
    for topic in topics:
        broker.topics.delete(topic, request.now)
        broker.delete_queues(topic)
    return _answer(request, None)


def names_in(body: bytes, member: str) -> list[str]:
    """Return the names that a member of a body lists.

    Raises:
        FormatError: it lists none, or something else.
    """
    listed = parse_body(body).get(member)
    if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
        raise FormatError(f"{member} is no list of names", offset=0)
    return listed


def _answer(request: "Request", fault: str | None) -> "Answer":
    code = ResponseCode.SUCCESS if fault is None else ResponseCode.INVALID_PARAMETER
    return request.command.answer(code, remark=fault)


def _list(broker: "Broker", request: "Request") -> "Answer":
    topics = broker.topics
    body = build_body(
        {
            "dataVersion": version_members(topics.version),
            "topicConfigTable": {name: topic_members(config) for name, config in topics.configs.items()},
        }
    )
    fields = {"totalTopicNum": str(len(topics.configs))}
    return request.command.answer(ext_fields=fields, body=body)


def _get(broker: "Broker", request: "Request") -> "Answer":
    topic = parse_header(TopicName, request.command.ext_fields).topic
    config = broker.topics.get(topic)
    answer: RemotingCommand
    if config is None:
        remark = f"No topic in this broker. topic: {topic}"
        answer = request.command.answer(ResponseCode.TOPIC_NOT_EXIST, remark=remark)
    else:
        answer = request.command.answer(body=build_body(topic_members(config)))
    return answer


def _list_system(broker: "Broker", request: "Request") -> "Answer":
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
