"""Protocol texts: remarks that clients and tools of RocketMQ match on, or show. They must not change.

Other remarks are only for people. An ``OperationRefusedError`` has its text, in RocketMQ's words if it has
some, so that the log of a client is the same with any broker.
"""

FOUND = "FOUND"
NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"
"""The status of a pop."""
OFFSET_RESET = "OFFSET_RESET"
"""A pull that continues elsewhere because of a reset by an administrator."""
PREVIOUSLY_RESET = "Offset has been previously reset"
"""An offset that is ignored because a reset is pending."""
ACL_EXCEPTION = "org.apache.rocketmq.acl.common.AclException: "
"""Prefix of the remark on a request without permission: clients recognize it by that, as its code is general."""
REJECT_REQUEST = "[REJECTREQUEST]system busy, start flow control for a while"
"""The answer of a slave to writes, and to reads that are not allowed."""
