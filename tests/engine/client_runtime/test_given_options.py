"""Options of clients, however they are given: what is misspelt or of a wrong kind is refused with a word."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mqtool
from mqtool import LitePullConsumerOptions, MessageModel, ProducerOptions, UsageError
from mqtool.engine.client_runtime.given_options import options_of

SERVER = "127.0.0.1:9"


def test_options_are_given_as_an_object_a_mapping_or_by_name() -> None:
    wanted = ProducerOptions(send_msg_timeout=500, namespace="shop")
    for given, more in (
        (wanted, {}),
        ({"send_msg_timeout": 500, "namespace": "shop"}, {}),
        (None, {"send_msg_timeout": 500, "namespace": "shop"}),
        (ProducerOptions(send_msg_timeout=1, namespace="shop"), {"send_msg_timeout": 500}),
        ({"send_msg_timeout": 1, "namespace": "shop"}, {"send_msg_timeout": 500}),
    ):
        assert options_of(ProducerOptions, given, more, {}) == wanted


def test_the_environment_gives_what_nobody_else_does() -> None:
    environment = {
        "MQTOOL_NAMESPACE": "shop",
        "MQTOOL_TLS": "true",
        "MQTOOL_AUTHORITIES": "ca.pem",
        "MQTOOL_CONSUME_TIMESTAMP": "5",
        "MQTOOL_MESSAGE_MODEL": "broadcasting",
        "MQTOOL_SEND_MSG_TIMEOUT": "of a producer",
        "OTHER": "x",
    }
    found = options_of(LitePullConsumerOptions, None, {"namespace": "own"}, environment)
    assert found == LitePullConsumerOptions(
        namespace="own",
        tls=True,
        authorities=Path("ca.pem"),
        consume_timestamp=5,
        message_model=MessageModel.BROADCASTING,
    )
    assert options_of(LitePullConsumerOptions, LitePullConsumerOptions(), {}, environment) == LitePullConsumerOptions()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"send_timeout": 1}, "send_timeout is not an option of this client: did you mean send_msg_timeout?"),
        ({"xyzzy": 1}, "xyzzy is not an option of this client, see help(mqtool.ProducerOptions)"),
        ({"send_msg_timeout": "500"}, "send_msg_timeout must be a whole number, not '500'"),
        ({"send_msg_timeout": True}, "send_msg_timeout must be a whole number, not True"),
        ({"tls": 1}, "tls must be True or False, not 1"),
        ({"namespace": b"shop"}, "namespace must be a string, not b'shop'"),
        ({"options": LitePullConsumerOptions()}, "must be ProducerOptions, not LitePullConsumerOptions"),
        ({"options": "fast"}, "options must be ProducerOptions or a mapping, not 'fast'"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(more: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        mqtool.Producer("G", SERVER, **more)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"message_model": "SHARED"}, "message_model must be one of CLUSTERING, BROADCASTING, not 'SHARED'"),
        ({"consume_from_where": 1}, "consume_from_where must be one of"),
        ({"offsets_folder": 1}, "offsets_folder must be a path, not 1"),
        ({"thresholds": 5}, "thresholds must be Thresholds, not 5"),
        ({"strategy": "averagely"}, "strategy must be a function, not 'averagely'"),
        ({"on_assigned": 5}, "on_assigned must be a function, not 5"),
        ({"hooks": mqtool.Hook()}, "hooks must be a sequence of hooks, not <"),
        ({"consume_thread_max": 0}, "consume_thread_max must be at least 1, not 0"),
        ({"consume_message_batch_max_size": 0}, "consume_message_batch_max_size must be at least 1, not 0"),
        ({"pull_batch_size": 0}, "pull_batch_size must be at least 1, not 0"),
        ({"consume_timeout": 0}, "consume_timeout must be at least 1, not 0"),
    ],
)
def test_what_a_consumer_could_not_work_with_is_refused_at_once(more: dict[str, Any], said: str) -> None:
    for arguments in (more, {"options": more}):
        with pytest.raises(UsageError, match=re.escape(said)):
            mqtool.PushConsumer("G", lambda *_: None, SERVER, **arguments)
    with pytest.raises(UsageError, match=re.escape(said)):
        mqtool.PushConsumer("G", lambda *_: None, SERVER, mqtool.PushConsumerOptions(**more))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"topics": "Orders"}, "topics must be a sequence of strings, not 'Orders'"),
        ({"serializer": 5}, "serializer must be a function, not 5"),
        ({"compress_level": 99}, "compress_level must be at most 9, not 99"),
        ({"compress_type": "rar"}, "compress_type must be one of LZ4, ZSTD, ZLIB, not 'rar'"),
        ({"latency_max": 5}, "latency_max must be a sequence of numbers, not 5"),
        ({"send_msg_timeout": -5}, "send_msg_timeout must be at least 1, not -5"),
    ],
)
def test_what_a_producer_could_not_work_with_is_refused_at_once(more: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        mqtool.Producer("P", SERVER, **more)


def test_names_of_enumerations_and_paths_may_be_text() -> None:
    wanted = LitePullConsumerOptions(message_model=MessageModel.BROADCASTING, offsets_folder=Path("offsets"))
    text: dict[str, Any] = {"message_model": "broadcasting", "offsets_folder": "offsets"}
    for given in (text, LitePullConsumerOptions(**text)):
        assert options_of(LitePullConsumerOptions, given, {}, {}) == wanted


@pytest.mark.parametrize("kind", [mqtool.Producer, mqtool.LitePullConsumer, mqtool.AdminClient])
@pytest.mark.parametrize(
    ("name_servers", "said"),
    [
        ("localhost", "localhost is not an address of the form host:port"),
        ("localhost:9876;localhost:x", "localhost:x is not an address"),
        ("localhost:65536", "localhost:65536 is not an address"),
        (["localhost:-1"], "localhost:-1 is not an address"),
        ([9876], "name_servers must be host:port;host:port, or a sequence of these, not [9876]"),
        (9876, "name_servers must be host:port;host:port, or a sequence of these, not 9876"),
    ],
)
def test_what_is_no_address_is_refused_at_once(kind: Any, name_servers: Any, said: str) -> None:
    with pytest.raises(UsageError, match=re.escape(said)):
        kind(*(() if kind is mqtool.AdminClient else ("G",)), name_servers)


def test_groups_listeners_topics_and_filters_that_make_no_sense_are_refused_at_once() -> None:
    consumer = mqtool.LitePullConsumer("G", SERVER)
    calls: list[tuple[Callable[[], Any], str]] = [
        (lambda: mqtool.Producer(5, SERVER), "the name of the group must be a string, not 5"),  # type: ignore[arg-type]
        (lambda: mqtool.PushConsumer("G", SERVER), "the listener must be a function"),  # type: ignore[arg-type]
        (lambda: consumer.subscribe(b"Orders"), "the name of the topic must be a string, not b'Orders'"),  # type: ignore[arg-type]
        (lambda: consumer.subscribe("Orders", None), "a filter must be a string, not None"),  # type: ignore[arg-type]
        (lambda: consumer.subscribe("Orders", 5, is_sql92=True), "a filter must be a string, not 5"),  # type: ignore[arg-type]
    ]
    for call, said in calls:
        with pytest.raises(UsageError, match=re.escape(said)):
            call()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("MQTOOL_TLS", "maybe", "MQTOOL_TLS must be true or false, not 'maybe'"),
        ("MQTOOL_SEND_MSG_TIMEOUT", "3 s", "MQTOOL_SEND_MSG_TIMEOUT must be a whole number, not '3 s'"),
        ("MQTOOL_COMPRESS_TYPE", "rar", "MQTOOL_COMPRESS_TYPE must be one of LZ4, ZSTD, ZLIB, not 'rar'"),
    ],
)
def test_a_variable_that_makes_no_sense_is_named(
    name: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=re.escape(said)):
        mqtool.aio.Producer("G", SERVER)


def test_every_client_takes_options_by_name() -> None:
    for module in (mqtool, mqtool.aio):
        assert "running" in repr(module.Producer("G", SERVER, namespace="n"))
        assert "running" in repr(module.PushConsumer("G", lambda *_: None, SERVER, namespace="n"))
        assert "running" in repr(module.LitePullConsumer("G", SERVER, namespace="n"))
        assert "running" in repr(module.PullConsumer("G", SERVER, namespace="n"))
        assert "running" in repr(module.PopConsumer("G", SERVER, namespace="n"))
        assert "running" in repr(module.TransactionProducer("G", object(), SERVER, namespace="n"))
        assert "running" in repr(module.AdminClient(SERVER, namespace="n"))


@pytest.mark.parametrize("given", [{"linger_ms": -1}, {"batch_size": 0}])
def test_a_batch_that_waits_or_holds_less_than_nothing_is_refused(given: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="a batch must wait 0 ms or longer, and hold 1 byte or more"):
        mqtool.Producer("P", "localhost:9876", given)
