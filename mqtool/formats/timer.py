"""Timer messages (5.x): a wheel of seconds, the log its slots point into, and how far the timer has come.

A slot names the newest and oldest unit of its second; each unit names the one before it. A unit that would not
leave room for ``LOG_END`` at the end of its file goes to the next. (RocketMQ: ``TimerWheel``, ``TimerLog``.)
"""

from construct import Bytes, Int32sb, Int64sb, Struct

from mqtool.formats.layout import dtype_of

SLOT = Struct(
    "time" / Int64sb,  # in units of the precision, a second by default
    "first_position" / Int64sb,  # in the timer log; -1 for none
    "last_position" / Int64sb,
    "count" / Int32sb,
    "magic_code" / Int32sb,  # 0
)
SLOT_SIZE = SLOT.sizeof()
SLOT_DTYPE = dtype_of(SLOT)
WHEEL_SLOT_COUNT = 2 * 7 * 24 * 3600
WHEEL_SIZE = WHEEL_SLOT_COUNT * SLOT_SIZE

LOG_UNIT = Struct(
    "size" / Int32sb,  # 52
    "previous_position" / Int64sb,  # the unit before it in its slot; -1 for none
    "magic_code" / Int32sb,  # MAGIC_DEFAULT, with MAGIC_ROLL or MAGIC_DELETE
    "enqueue_timestamp" / Int64sb,
    "delay_ms" / Int32sb,  # its second less enqueue_timestamp
    "physical_offset" / Int64sb,  # the message in the commit log
    "message_size" / Int32sb,
    "topic_hash" / Int32sb,  # Java hash of the topic it is for
    "reserved" / Int64sb,
)
LOG_UNIT_SIZE = LOG_UNIT.sizeof()
LOG_UNIT_DTYPE = dtype_of(LOG_UNIT)
MAGIC_DEFAULT = 1
MAGIC_ROLL = 2  # further ahead than the wheel turns: will be put again
MAGIC_DELETE = 4

LOG_END = Struct(
    "size" / Int32sb,  # up to the end of the file
    "previous_position" / Int64sb,
    "magic_code" / Int32sb,  # that of a blank record of the commit log
)
LOG_END_SIZE = LOG_END.sizeof()

TIMER_CHECK = Struct(
    "last_read_timestamp" / Int64sb,
    "last_timer_log_flushed_position" / Int64sb,
    "last_timer_queue_offset" / Int64sb,
    "master_timer_queue_offset" / Int64sb,
    "state_version" / Int64sb,
    "data_version_timestamp" / Int64sb,
    "data_version_counter" / Int64sb,
    "rest" / Bytes(4096 - 7 * 8),
)
TIMER_CHECK_SIZE = TIMER_CHECK.sizeof()
TIMER_CHECK_DTYPE = dtype_of(TIMER_CHECK)
