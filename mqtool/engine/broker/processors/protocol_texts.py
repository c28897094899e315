"""Protocol text: remarks that clients and tools of RocketMQ look for, or show as they are. None of them may change.

Whatever else a remark says is for people. A ``RefusedError`` brings its text along, in RocketMQ's words where it has
some: whoever reads the log of a client finds the same there with any broker.
"""

FOUND = "FOUND"
NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"
"""The status of a pop."""
OFFSET_RESET = "OFFSET_RESET"
"""A pull that continues elsewhere because an administrator wants it so."""
PREVIOUSLY_RESET = "Offset has been previously reset"
"""An offset that is not taken because a reset comes first."""
ACL_EXCEPTION = "org.apache.rocketmq.acl.common.AclException: "
"""How the remark of a request begins that its sender may not make: clients know it by that, its code is that of any."""
REJECT_REQUEST = "[REJECTREQUEST]system busy, start flow control for a while"
"""What a slave answers to who would write, or may not read."""
