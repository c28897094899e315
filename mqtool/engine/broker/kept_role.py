"""The role that a broker was given at runtime, kept in its store: it takes precedence over settings.

Each change of roles among the brokers of a name has an epoch, one above the highest known. A broker that finds a higher
one than its own at another of its name is no longer a master. If ``brokerRole`` in the settings is changed afterwards
the settings count again, and the epoch stays.
"""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from mqtool.engine.broker.config_files import save_data
from mqtool.engine.broker.roles import role_of
from mqtool.engine.broker.settings import BrokerSettings, Role
from mqtool.engine.store.file_kinds import CONFIG
from mqtool.engine.store.mapping import reading
from mqtool.errors import BadDataError, FormatError, NotFoundError
from mqtool.formats.bodies import build_body, parse_body

EPOCH = "replicationEpoch"
"""Key in a broker's runtime information: the epoch of the last change of roles that it knows."""
_FILE = "mqtoolRole.json"


class KeptRole(NamedTuple):
    """The role that a broker was given, and its settings at that time."""

    role: Role
    broker_id: int
    epoch: int
    configured_role: Role
    configured_id: int


def read_role(root: Path) -> KeptRole | None:
    """Return the role that the store under ``root`` keeps, None if it was never changed.

    Raises:
        BadDataError: the file cannot be read, so it is unknown whether this may be a master.
    """
    path = root / CONFIG.name / _FILE
    try:
        with reading(path):
            body = parse_body(path.read_bytes())
        return KeptRole(
            Role(body["role"]),
            int(body["brokerId"]),
            int(body["epoch"]),
            Role(body["configuredRole"]),
            int(body["configuredId"]),
        )
    except NotFoundError:
        return None
    except (FormatError, KeyError, TypeError, ValueError) as error:
        text = f"{path} cannot be read: {error}; remove it if the settings define the role of this broker"
        raise BadDataError(text) from None


def write_role(root: Path, kept: KeptRole) -> None:
    """Save a role; it is on disk on return.

    Raises:
        WriteError: the disk is full, or fails: the previous role stays.
    """
    body = {
        "role": kept.role,
        "brokerId": kept.broker_id,
        "epoch": kept.epoch,
        "configuredRole": kept.configured_role,
        "configuredId": kept.configured_id,
    }
    save_data(root / CONFIG.name / _FILE, build_body(body))


def with_kept_role(settings: BrokerSettings, kept: KeptRole | None) -> tuple[BrokerSettings, int]:
    """Return settings with the role that a broker has, and its epoch."""
    if kept is None:
        return settings, 0
    if (role_of(settings), settings.broker_id) != (kept.configured_role, kept.configured_id):
        return settings, kept.epoch
    return replace(settings, role=kept.role, broker_id=kept.broker_id), kept.epoch
