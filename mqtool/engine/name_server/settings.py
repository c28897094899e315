"""The settings of a name server, by RocketMQ's names."""

from dataclasses import dataclass

from mqtool.formats.settings import Settings, setting


@dataclass(frozen=True, slots=True)
class NameServerSettings(Settings):
    """What ``namesrv.conf`` may say; all else in such a file has no effect here."""

    kv_config_path: str = setting("kvConfigPath", "")  # empty: kept in memory only
    order_message_enabled: bool = setting("orderMessageEnable", False)  # routes tell the order config
    return_order_config: bool = setting("returnOrderTopicConfigToBroker", True)
    topic_list_enabled: bool = setting("enableTopicList", True)
    all_topic_list_enabled: bool = setting("enableAllTopicList", True)
    delete_topic_with_registration: bool = setting("deleteTopicWithBrokerRegistration", False)
    scan_interval_ms: int = setting("scanNotActiveBrokerInterval", 5000)
    wait_for_service: bool = setting("needWaitForService", False)
    wait_seconds: int = setting("waitSecondsForService", 45)
