"""The replication stream between a master and its slaves: a report goes up, a frame comes down.

A frame is its head and as many bytes of the commit log as that says; one without any is a heartbeat. Nothing else is
ever sent: there is no handshake, no version and no checksum. (Rules: replication.md 2.)
"""

from construct import Int32sb, Int64sb, Struct

from mqtool.formats.layout import packer_of

REPORT = Struct(
    "max_offset" / Int64sb,  # where the slave's log ends
)
REPORT_SIZE = REPORT.sizeof()
PACK_REPORT = packer_of(REPORT)

FRAME_HEAD = Struct(
    "physical_offset" / Int64sb,  # of the first byte of the body; of a heartbeat: of the next byte to come
    "size" / Int32sb,  # of the body
)
FRAME_HEAD_SIZE = FRAME_HEAD.sizeof()
PACK_FRAME_HEAD = packer_of(FRAME_HEAD)
