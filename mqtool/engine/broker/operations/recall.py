"""Recalls of timer messages that are not delivered yet.

(Rules: remoting.md 3.2. RocketMQ: ``RecallMessageProcessor``.)
"""

from typing import NamedTuple

from mqtool.engine.broker.intake import Intake
from mqtool.engine.broker.operations.refusal import OperationRefusedError, Reason
from mqtool.engine.broker.state import BrokerState
from mqtool.engine.broker.topics import Topics, may_be_sent_to
from mqtool.engine.store.append_result import PutStatus
from mqtool.errors import FormatError
from mqtool.formats.codes import Perm
from mqtool.formats.new_message import Host, NewMessage
from mqtool.formats.properties import as_value, build_properties
from mqtool.formats.property_names import PGROUP, TAGS, TIMER_DEL_UNIQKEY, TIMER_DELIVER_MS, UNIQ_KEY
from mqtool.formats.recall import RecallHandle, parse_handle

_BODY, _TAG = b"0", "_RECALL_TAG_"


class Recalled(NamedTuple):
    """A message that will not be delivered, once the log is flushed up to an address; 0 for at once."""

    unique_key: str
    flush_offset: int


class Recalls:
    """Recalls, with the parts of a broker that they need."""

    def __init__(self, intake: Intake, state: BrokerState, topics: Topics) -> None:
        self._intake = intake
        self._state = state
        self._topics = topics

    def recall(self, topic: str, handle_text: str, producer_group: str, born_host: Host, now: int) -> Recalled:
        """Prevent the delivery of a message: the recall waits in the timer topic, like the message itself.

        Raises:
            OperationRefusedError: there is no such message any more, or the recall cannot be stored.
            FormatError: the handle or the group contains an invalid name.
        """
        handle = self._checked(topic, handle_text, now)
        pairs = {
            TIMER_DEL_UNIQKEY: as_value(
                f"{handle.topic}+{handle.unique_key}"
            ),  # the form of 5.3; later releases omit the topic
            UNIQ_KEY: handle.unique_key,
            TIMER_DELIVER_MS: str(handle.timestamp),
            TAGS: _TAG,
            PGROUP: as_value(producer_group),
        }
        message = NewMessage(
            handle.topic,
            0,
            _BODY,
            build_properties(pairs),
            born_timestamp=now,
            born_host=born_host,
            store_host=self._state.store_host,
        )
        result = self._intake.put(message, now)
        if result.status is not PutStatus.PUT_OK:
            raise OperationRefusedError(Reason.NOT_POSSIBLE, self._intake.store.refusal or "execute error")
        return Recalled(handle.unique_key, result.flush_offset)

    def _checked(self, topic: str, handle_text: str, now: int) -> RecallHandle:
        """Return the handle of a message that can be recalled; raises ``OperationRefusedError``."""
        settings = self._state.settings
        if not settings.recall_enabled:
            raise OperationRefusedError(Reason.NOT_ALLOWED, "operation is forbidden")
        if not settings.perm & Perm.WRITE:
            raise OperationRefusedError(Reason.UNAVAILABLE, "broker service not available")
        if not may_be_sent_to(topic):
            raise OperationRefusedError(Reason.NOT_ALLOWED, f"messages of the topic[{topic}] cannot be recalled")
        if self._topics.get(topic) is None:
            raise OperationRefusedError(Reason.NO_TOPIC, f"the topic[{topic}] not exist")
        try:
            handle = parse_handle(handle_text)
        except FormatError as error:
            raise OperationRefusedError(Reason.BAD_HANDLE, f"recall handle is invalid: {error.reason}") from None
        if handle.topic != topic:
            raise OperationRefusedError(Reason.BAD_HANDLE, "topic not match")
        if handle.broker_name != settings.broker_name:
            raise OperationRefusedError(Reason.BAD_HANDLE, "broker service not available")
        if not 0 < handle.timestamp - now < settings.timer_max_delay_seconds * 1000:
            raise OperationRefusedError(Reason.BAD_HANDLE, "timestamp invalid")
        return handle
