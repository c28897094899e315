"""The settings of a broker, by RocketMQ's names; most take effect at once when they are changed at runtime."""

import enum
from dataclasses import dataclass

from mqtool.formats.settings import Settings, setting
from mqtool.formats.topics import TRACE_TOPIC

MASTER_ID = 0


class Role(enum.StrEnum):
    """The role of a broker among others of its name (``brokerRole``)."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


@dataclass(frozen=True, slots=True)
class BrokerSettings(Settings):
    """The settings in ``broker.conf``, besides those of its store; others in such a file have no effect here."""

    # Identity
    cluster_name: str = setting("brokerClusterName", "DefaultCluster")
    broker_name: str = setting("brokerName", "broker-a")
    broker_id: int = setting("brokerId", 0, least=0)  # 0 is a master
    host: str = setting("brokerIP1", "")  # announced to clients; empty: where it listens
    region: str = setting("regionId", "DefaultRegion")

    # Replication
    role: str = setting("brokerRole", "ASYNC_MASTER")
    ha_port: int = setting("haListenPort", 0, least=0)  # 0: the port after its own
    ha_host: str = setting("brokerIP2", "")  # where slaves reach it; empty: where it listens
    ha_allow: str = setting("haAllow", "")  # comma-separated networks of allowed slaves; empty: loopback
    ha_master_address: str = setting("haMasterAddress", "")  # of a slave; empty: from name servers
    ha_heartbeat_ms: int = setting("haSendHeartbeatInterval", 5000)
    ha_housekeeping_ms: int = setting("haHousekeepingInterval", 20_000)
    ha_batch_size: int = setting("haTransferBatchSize", 32_768)  # maximum bytes of a frame
    ha_max_gap: int = setting("haMaxGapNotInSync", 1 << 28)  # a slave that lacks fewer bytes is in sync
    ha_most_behind: int = setting("haSlaveFallbehindMax", 1 << 28)  # of 4.9: one that lacks fewer bytes is available
    ha_flow_control: bool = setting("haFlowControlEnable", False)
    ha_bytes_per_second: int = setting("maxHaTransferByteInSecond", 100 << 20)  # to each slave
    ha_dialect: int = setting("haDialect", 5)  # whose answers a SYNC_MASTER gives: 4 or 5
    slave_timeout_ms: int = setting("slaveTimeout", 3000)
    in_sync_replicas: int = setting("inSyncReplicas", 1)  # includes the master
    starts_at_first_byte: bool = setting("haStartAtFirstByte", False)  # an empty slave: else at the last segment
    copy_interval_ms: int = setting("haCopyInterval", 10_000, least=100)  # of the master's tables, by a slave
    inner_credentials: str = setting("innerClientAuthenticationCredentials", "")  # of a slave's requests, as JSON
    slave_read_enabled: bool = setting("slaveReadEnable", False)
    checks_offsets_as_slave: bool = setting("offsetCheckInSlave", False)
    memory_ratio: int = setting("accessMessageInMemoryMaxRatio", 40, least=0)  # percent; beyond it, read from a slave

    # Topics
    perm: int = setting("brokerPermission", 6, least=0)  # bits: 2 write, 4 read
    auto_create_topics: bool = setting("autoCreateTopicEnable", True)
    default_queue_count: int = setting("defaultTopicQueueNums", 8)
    cluster_topic_enabled: bool = setting("clusterTopicEnable", True)
    broker_topic_enabled: bool = setting("brokerTopicEnable", True)
    trace_topic_enabled: bool = setting("traceTopicEnable", False)
    trace_topic: str = setting("msgTraceTopicName", TRACE_TOPIC)
    revive_queue_count: int = setting("reviveQueueNum", 8)
    timer_enabled: bool = setting("timerWheelEnable", True)
    timer_max_delay_seconds: int = setting("timerMaxDelaySec", 259_200)

    # Messages
    trace_on: bool = setting("traceOn", True)  # clients may send message traces
    refuse_transactions: bool = setting("rejectTransactionMessage", False)
    recall_enabled: bool = setting("recallMessageEnable", False)
    store_replies: bool = setting("storeReplyMessageEnable", True)
    flush_timeout_ms: int = setting("syncFlushTimeout", 5000)
    delay_offset_interval_ms: int = setting("flushDelayOffsetInterval", 10_000)

    # Consumers
    auto_create_groups: bool = setting("autoCreateSubscriptionGroup", True)
    long_polling_enabled: bool = setting("longPollingEnable", True)
    lite_pull_enabled: bool = setting("litePullMessageEnable", True)
    sql92_enabled: bool = setting("enablePropertyFilter", True)  # RocketMQ's own default is false
    retry_topic_v2_enabled: bool = setting("enableRetryTopicV2", False)  # the form of names of pop retry topics
    server_side_reset: bool = setting("useServerSideResetOffset", True)

    # Transactions
    transaction_timeout_ms: int = setting("transactionTimeOut", 6000)
    transaction_check_max: int = setting("transactionCheckMax", 15)
    transaction_check_interval_ms: int = setting("transactionCheckInterval", 30_000)

    # Access
    acl_enabled: bool = setting("aclEnable", False)
    acl_file: str = setting("rocketmq.acl.plain.file", "conf/plain_acl.yml")  # a system property of RocketMQ's JVM

    # Clients of Apache Pulsar
    token_secret_key: str = setting("tokenSecretKey", "")  # by Pulsar's names: a file, or base64
    token_public_key: str = setting("tokenPublicKey", "")
    token_public_algorithm: str = setting("tokenPublicAlg", "RS256")
    pulsar_advertised: str = setting("pulsarAdvertised", "")  # host:port announced to them; empty: where they connected
    pulsar_save_interval_ms: int = setting("pulsarSaveInterval", 500, least=100)  # of positions and sequence ids

    dispatch_messages_per_second: int = setting("dispatchThrottlingRateInMsg", 0, least=0)  # 0: no limit
    dispatch_bytes_per_second: int = setting("dispatchThrottlingRateInByte", 0, least=0)
    topic_messages_per_second: int = setting("dispatchThrottlingRatePerTopicInMsg", 0, least=0)
    topic_bytes_per_second: int = setting("dispatchThrottlingRatePerTopicInByte", 0, least=0)
    subscription_messages_per_second: int = setting("dispatchThrottlingRatePerSubscriptionInMsg", 0, least=0)
    subscription_bytes_per_second: int = setting("dispatchThrottlingRatePerSubscriptionInByte", 0, least=0)

    # Name servers
    register_interval_ms: int = setting("registerNameServerPeriod", 30_000)


AT_START = frozenset(
    (
        "brokerClusterName",
        "brokerName",
        "brokerId",
        "brokerIP1",
        "brokerRole",
        "haListenPort",
        "brokerIP2",
        "haAllow",
        "haMasterAddress",
        "innerClientAuthenticationCredentials",
        "clusterTopicEnable",
        "brokerTopicEnable",
        "defaultTopicQueueNums",
        "traceTopicEnable",
        "msgTraceTopicName",
        "reviveQueueNum",
        "aclEnable",
        "rocketmq.acl.plain.file",
        "pulsarAdvertised",
        "tokenSecretKey",
        "tokenPublicKey",
        "tokenPublicAlg",
    )
)
"""Settings that are used only at startup: names, and others that are fixed from then on."""
