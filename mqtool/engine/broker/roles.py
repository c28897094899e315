"""The role of a broker among others of its name, by its settings, and unsupported kinds of replication.

(Rules: replication.md 1, 10. RocketMQ: ``BrokerStartup``, ``BrokerConfig``.)
"""

from collections.abc import Mapping

from mqtool.engine.broker.settings import MASTER_ID, BrokerSettings, Role
from mqtool.errors import UsageError

HA_SETTINGS = frozenset(
    (
        "brokerRole",
        "haListenPort",
        "haMasterAddress",
        "haAllow",
        "brokerIP2",
        "inSyncReplicas",
        "haDialect",
    )
)
"""If one of these is set, replication is wanted: then a port that is in use is an error."""

_DIALECTS = (4, 5)
_WITHOUT_REPLICAS = 4
"""The dialect without inSyncReplicas: a SYNC_MASTER waits for one slave."""
_REFUSED = {
    "enableControllerMode": "a controller would choose the master, and slaves would use another protocol",
    "enableDLegerCommitLog": "DLedger logs can be read here, but not written",
    "duplicationEnable": "the log would be written by others",
    "enableSlaveActingMaster": "a slave would act as its master through other masters",
}
"""Settings for unsupported kinds of replication, and why they are not supported."""


def role_of(settings: BrokerSettings) -> Role:
    """Return the configured role.

    Raises:
        UsageError: there is no such role.
    """
    try:
        return Role(settings.role.strip().upper())
    except ValueError:
        raise UsageError(f"brokerRole={settings.role} is not one of {', '.join(Role)}") from None


def remarks(settings: BrokerSettings) -> list[str]:
    """Return warnings for the start of a broker: settings that do less than they seem to."""
    role, texts = role_of(settings), []
    if role is Role.SYNC_MASTER and settings.ha_dialect != _WITHOUT_REPLICAS and settings.in_sync_replicas == 1:
        texts.append(
            "brokerRole=SYNC_MASTER with inSyncReplicas=1, the default, does not wait for slaves: with "
            "inSyncReplicas=2 each send waits for one slave"
        )
    if role is Role.ASYNC_MASTER and settings.in_sync_replicas > 1:
        texts.append(
            f"inSyncReplicas={settings.in_sync_replicas} has no effect: a broker with brokerRole=ASYNC_MASTER "
            "does not wait for slaves"
        )
    if role is not Role.SLAVE and settings.broker_id != MASTER_ID:
        texts.append(f"brokerId={settings.broker_id} has no effect: the id of a master is always {MASTER_ID}")
    return texts


def check_roles(configured: Mapping[str, str], settings: BrokerSettings) -> None:
    """Check that a broker can be what its settings ask for.

    Args:
        configured: all that is set, by RocketMQ's names.
        settings: as parsed.

    Raises:
        UsageError: it cannot be.
    """
    for name, reason in _REFUSED.items():
        if configured.get(name, "").strip().lower() == "true":
            raise UsageError(
                f"{name}=true is not supported: {reason}; leave out {name} to use the default mode (brokerRole)"
            )
    role = role_of(settings)
    if settings.ha_dialect not in _DIALECTS:
        raise UsageError(f"haDialect={settings.ha_dialect} is neither 4 nor 5")
    if role is Role.SLAVE and settings.broker_id <= 0:
        raise UsageError("brokerRole=SLAVE needs a brokerId above 0: 0 is the id of the master")
