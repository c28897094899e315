"""The state of a slave's replication: its master, its progress, and why it has stopped."""

import enum
from dataclasses import dataclass

STATUS = "replicationStatus"
"""Key in a broker's runtime information that only slaves have."""
TABLES_REASON = "replicationTablesReason"
"""Key of why tables of the master were not copied."""


class FollowingStatus(enum.StrEnum):
    """What a slave is doing."""

    SEARCHING = "searching"
    """It does not know its master, or cannot reach it."""
    FOLLOWING = "following"
    """It is connected and appends what it receives."""
    STOPPED = "stopped"
    """It does not replicate, as that would damage its log, or there is no space: ``reason`` says why."""


@dataclass
class Following:
    """The state of replication of one slave; times are in ms since 1970, 0 for never."""

    master_address: str = ""
    """Where the master answers requests, empty while unknown."""
    ha_address: str = ""
    """Where it sends its log."""
    status: FollowingStatus = FollowingStatus.SEARCHING
    reason: str = ""
    """Why it is not following."""
    misfit: str = ""
    """Why the log did not match its master's when the two were last compared; empty if it did."""
    unchecked: str = ""
    """Why the logs could not be compared before the first report; empty if they were."""
    last_read_timestamp: int = 0
    """When something was last received from the master."""
    last_write_timestamp: int = 0
    """When it was last told the end of this log."""
    bytes_per_second: int = 0
    """Bytes of the log received in the last second."""
    copied_timestamp: int = 0
    """From when the consumer offsets of the master are that this slave has."""
    tables_timestamp: int = 0
    """When all tables of the master were last requested and received."""
    tables_reason: str = ""
    """Which of them were not copied the last time, and why; empty if all were."""

    def texts(self) -> dict[str, str]:
        """Return it as part of the broker's runtime information (GET_BROKER_RUNTIME_INFO)."""
        return {
            STATUS: self.status,
            "replicationReason": self.reason,
            "replicationMisfit": self.misfit,
            "replicationUnchecked": self.unchecked,
            "replicationMaster": self.master_address,
            "replicationHaAddress": self.ha_address,
            "replicationBytesPerSecond": str(self.bytes_per_second),
            "replicationCopiedTimestamp": str(self.copied_timestamp),
            TABLES_REASON: self.tables_reason,
            "replicationTablesTimestamp": str(self.tables_timestamp),
        }
