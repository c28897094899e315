"""Timer messages (5.x): a wheel of seconds, the log its slots point into, and how far the timer has come.

A slot names the newest and oldest unit of its second; each unit names the one before it. A unit that would not
leave room for ``LOG_END`` at the end of its file goes to the next. (RocketMQ: ``TimerWheel``, ``TimerLog``.)
"""

from mqtool.formats.layout import I32, I64, Layout, raw

SLOT = Layout(
    time=I64,  # in units of the precision, a second by default
    first_position=I64,  # in the timer log; -1 for none
    last_position=I64,
    count=I32,
    magic_code=I32,  # 0
)
SLOT_SIZE = SLOT.size
WHEEL_SLOT_COUNT = 2 * 7 * 24 * 3600
WHEEL_SIZE = WHEEL_SLOT_COUNT * SLOT_SIZE

LOG_UNIT = Layout(
    size=I32,  # 52
    previous_position=I64,  # the unit before it in its slot; -1 for none
    magic_code=I32,  # MAGIC_DEFAULT, with MAGIC_ROLL or MAGIC_DELETE
    enqueue_timestamp=I64,
    delay_ms=I32,  # its second less enqueue_timestamp
    physical_offset=I64,  # the message in the commit log
    message_size=I32,
    topic_hash=I32,  # Java hash of the topic it is for
    reserved=I64,
)
LOG_UNIT_SIZE = LOG_UNIT.size
MAGIC_DEFAULT = 1
MAGIC_ROLL = 2  # further ahead than the wheel turns: will be put again
MAGIC_DELETE = 4

LOG_END = Layout(
    size=I32,  # up to the end of the file
    previous_position=I64,
    magic_code=I32,  # that of a blank record of the commit log
)
LOG_END_SIZE = LOG_END.size

TIMER_CHECK = Layout(
    last_read_timestamp=I64,
    last_timer_log_flushed_position=I64,
    last_timer_queue_offset=I64,
    master_timer_queue_offset=I64,
    state_version=I64,
    data_version_timestamp=I64,
    data_version_counter=I64,
    rest=raw(4096 - 7 * 8),
)
TIMER_CHECK_SIZE = TIMER_CHECK.size
