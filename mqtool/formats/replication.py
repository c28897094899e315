"""The replication stream between a master and its slaves: a report goes up, a frame comes down.

A frame is its head and as many bytes of the commit log as that says; one without any is a heartbeat. Nothing else is
ever sent: there is no handshake, no version and no checksum. (Rules: replication.md 2.)
"""

from mqtool.formats.layout import I32, I64, Layout

REPORT = Layout(
    max_offset=I64,  # where the slave's log ends
)
REPORT_SIZE = REPORT.size
PACK_REPORT = REPORT.packer

FRAME_HEAD = Layout(
    physical_offset=I64,  # of the first byte of the body; of a heartbeat: of the next byte to come
    size=I32,  # of the body
)
FRAME_HEAD_SIZE = FRAME_HEAD.size
PACK_FRAME_HEAD = FRAME_HEAD.packer
