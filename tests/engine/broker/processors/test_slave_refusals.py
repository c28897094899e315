"""What a slave serves: every request code is looked at, also one that will be added."""

from mqtool.engine.broker.processors.slave_refusals import refusal_by_slave
from mqtool.engine.broker.settings import BrokerSettings
from mqtool.engine.broker.state import BrokerState
from mqtool.formats.codes import RequestCode
from tests.engine.broker.code_table import served

SERVED_BY_SLAVES = {
    "PULL_MESSAGE",
    "LITE_PULL_MESSAGE",
    "PEEK_MESSAGE",
    "NOTIFICATION",
    "POLLING_INFO",
    "QUERY_MESSAGE",
    "VIEW_MESSAGE_BY_ID",
    "QUERY_CONSUME_QUEUE",
    "SEARCH_OFFSET_BY_TIMESTAMP",
    "GET_MAX_OFFSET",
    "GET_MIN_OFFSET",
    "GET_EARLIEST_MSG_STORETIME",
    "HEART_BEAT",
    "UNREGISTER_CLIENT",
    "CHECK_CLIENT_CONFIG",
    "LOCK_BATCH_MQ",
    "UNLOCK_BATCH_MQ",
    "QUERY_ASSIGNMENT",
    "QUERY_CONSUMER_OFFSET",
    "UPDATE_CONSUMER_OFFSET",
    "QUERY_CORRECTION_OFFSET",
    "GET_ALL_TOPIC_CONFIG",
    "GET_ALL_CONSUMER_OFFSET",
    "GET_ALL_DELAY_OFFSET",
    "GET_ALL_SUBSCRIPTIONGROUP_CONFIG",
    "GET_ALL_MESSAGE_REQUEST_MODE",
    "GET_TIMER_CHECK_POINT",
    "GET_TIMER_METRICS",
    "GET_TOPIC_CONFIG",
    "GET_SUBSCRIPTIONGROUP_CONFIG",
    "GET_SYSTEM_TOPIC_LIST_FROM_BROKER",
    "GET_TOPIC_STATS_INFO",
    "GET_CONSUME_STATS",
    "GET_BROKER_CONSUME_STATS",
    "VIEW_BROKER_STATS_DATA",
    "QUERY_TOPIC_CONSUME_BY_WHO",
    "QUERY_CONSUME_TIME_SPAN",
    "QUERY_TOPICS_BY_CONSUMER",
    "QUERY_SUBSCRIPTION_BY_CONSUMER",
    "GET_CONSUMER_LIST_BY_GROUP",
    "GET_CONSUMER_CONNECTION_LIST",
    "GET_PRODUCER_CONNECTION_LIST",
    "GET_ALL_PRODUCER_INFO",
    "GET_CONSUMER_RUNNING_INFO",
    "INVOKE_BROKER_TO_GET_CONSUMER_STATUS",
    "CONSUME_MESSAGE_DIRECTLY",
    "GET_PULSAR_SUBSCRIPTIONS",
    "GET_BROKER_CONFIG",
    "UPDATE_BROKER_CONFIG",
    "GET_BROKER_RUNTIME_INFO",
    "GET_BROKER_HA_STATUS",
    "GET_LOG_CHECKSUMS",
    "CHANGE_ROLE",
    "RESET_MASTER_FLUSH_OFFSET",
    "CLEAN_EXPIRED_CONSUMEQUEUE",
    "DELETE_EXPIRED_COMMITLOG",
    "POP_ROLLBACK",
    "UPDATE_AND_CREATE_ACL_CONFIG",
    "DELETE_ACL_CONFIG",
    "UPDATE_GLOBAL_WHITE_ADDRS_CONFIG",
    "GET_BROKER_CLUSTER_ACL_INFO",
    "GET_BROKER_CLUSTER_ACL_CONFIG",
}
"""What stores no message and changes nothing that the next copy of the master's tables would undo, but for offsets that
the master learns from its slave's consumers; accounts and settings are each broker's own."""


def test_a_slave_refuses_every_request_that_is_not_known_to_be_harmless() -> None:
    settings = BrokerSettings(role="SLAVE", broker_id=1, slave_read_enabled=True)
    slave = BrokerState(settings, "127.0.0.1:10911")

    accepted = {RequestCode(code).name for code in served()[1] if refusal_by_slave(code, slave) is None}

    assert accepted == SERVED_BY_SLAVES
