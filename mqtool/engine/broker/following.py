"""What a slave knows of how it follows its master: which that is, how far it has come, and why it has stopped."""

import enum
from dataclasses import dataclass


class FollowingStatus(enum.StrEnum):
    """What a slave is doing."""

    SEARCHING = "searching"
    """It does not know its master, or cannot reach it."""
    FOLLOWING = "following"
    """It is connected and appends what comes."""
    STOPPED = "stopped"
    """It does not replicate, since that would damage its log, or there is no room: ``reason`` says why."""


@dataclass
class Following:
    """The state of replication of one slave; times are in ms since 1970, 0 for never."""

    master_address: str = ""
    """Where the master answers requests, empty while that is not known."""
    ha_address: str = ""
    """Where it sends its log."""
    status: FollowingStatus = FollowingStatus.SEARCHING
    reason: str = ""
    """Why it is not following."""
    unchecked: str = ""
    """Why the logs could not be compared before the first report; empty where they were."""
    last_read_timestamp: int = 0
    """When something last came from the master."""
    last_write_timestamp: int = 0
    """When it was last told how far this log reaches."""
    bytes_per_second: int = 0
    """Of the log, that came in the last second."""
    copied_timestamp: int = 0
    """When the master's tables were last copied."""

    def texts(self) -> dict[str, str]:
        """Return it as a part of what a broker tells of itself (GET_BROKER_RUNTIME_INFO)."""
        return {
            "replicationStatus": self.status,
            "replicationReason": self.reason,
            "replicationUnchecked": self.unchecked,
            "replicationMaster": self.master_address,
            "replicationHaAddress": self.ha_address,
            "replicationBytesPerSecond": str(self.bytes_per_second),
            "replicationCopiedTimestamp": str(self.copied_timestamp),
        }
