"""One client for everything, as tests ask a broker: it sends, pulls, pops, ends transactions and makes topics."""

import asyncio
import itertools
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from mqtool.engine.remoting.client import RemotingClient
from mqtool.formats.bodies import ConsumerData, Registration, Subscription, build_registration
from mqtool.formats.codes import RequestCode, ResponseCode
from mqtool.formats.config_tables import DataVersion, TopicConfig
from mqtool.formats.headers import BrokerIdentity, Send, build_header
from mqtool.formats.inner_batch import inner_messages, is_inner_batch
from mqtool.formats.message import Message, message_of
from mqtool.formats.pop import Receipt, build_receipt
from mqtool.formats.properties import build_properties
from mqtool.formats.remoting import RemotingCommand
from mqtool.formats.signing import Credentials
from mqtool.formats.stored_message import parse_stored

PRODUCERS = "P"
"""The group of whatever is sent."""


def consumer(group: str, *subscriptions: Subscription) -> ConsumerData:
    """Return a consumer of a group, for a heartbeat."""
    return ConsumerData(group, "CONSUME_PASSIVELY", "CLUSTERING", "CONSUME_FROM_FIRST_OFFSET", subscriptions)


def registration(name: str, address: str, topics: Iterable[str], filter_servers: Sequence[str] = ()) -> RemotingCommand:
    """Return the request by which a broker makes itself and its topics known to a name server."""
    configs = {topic: TopicConfig(topic, 1, 1, 6, False, "SINGLE_TAG", 0, {}) for topic in topics}
    fields = {**build_header(BrokerIdentity(name, address, "C", 0)), "haServerAddr": ""}
    body = build_registration(Registration(DataVersion(0, 1, 1), configs, [*filter_servers]))
    return RemotingCommand(RequestCode.REGISTER_BROKER, ext_fields=fields, body=body)


class WireClient:
    """Producer, consumer and administrator of one broker."""

    def __init__(self, address: str, credentials: Credentials | None = None) -> None:
        self._client = RemotingClient([address], on_request=self._take, credentials=credentials)
        self.checks: asyncio.Queue[RemotingCommand] = asyncio.Queue()
        self._keys = itertools.count()

    def _take(self, command: RemotingCommand) -> None:
        if command.code == RequestCode.CHECK_TRANSACTION_STATE:
            self.checks.put_nowait(command)

    async def ask(self, code: int, body: bytes = b"", **fields: Any) -> RemotingCommand:
        texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in fields.items()}
        return await self._client.invoke(RemotingCommand(code, ext_fields=texts, body=body), timeout_ms=20_000)

    async def done(self, code: int, body: bytes = b"", **fields: Any) -> dict[str, str]:
        answer = await self.ask(code, body, **fields)
        assert answer.code == 0, (code, fields, answer)
        return dict(answer.ext_fields)

    async def close(self) -> None:
        await self._client.close()

    # Sending

    async def make_topic(self, topic: str, **more: Any) -> None:
        fields: dict[str, Any] = {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": 2,
            "writeQueueNums": 2,
            "perm": 6,
        }
        fields |= {"topicFilterType": "SINGLE_TAG", "order": False, **more}
        await self.done(RequestCode.UPDATE_AND_CREATE_TOPIC, **fields)

    async def send(self, body: bytes, queue: int = 0, topic: str = "Orders", **given: Any) -> dict[str, str]:
        now = time.time_ns() // 1_000_000
        pairs = {"UNIQ_KEY": f"{now:032X}"[:28] + f"{next(self._keys):04X}", "WAIT": "true", **given.pop("pairs", {})}
        fields = {"producerGroup": PRODUCERS, "topic": topic, "defaultTopic": "TBW102", "defaultTopicQueueNums": 4}
        fields |= {"queueId": queue, "sysFlag": 0, "bornTimestamp": now, "flag": 0, "batch": False, "reconsumeTimes": 0}
        properties = build_properties(pairs).decode()
        sent = await self.done(RequestCode.SEND_MESSAGE, body, **{**fields, "properties": properties, **given})
        return {"UNIQ_KEY": pairs["UNIQ_KEY"], **sent}

    async def prepare(self, body: bytes) -> dict[str, str]:
        """Send a half message and return what it takes to end it."""
        sent = await self.send(body, sysFlag=4, pairs={"TRAN_MSG": "true", "PGROUP": PRODUCERS})
        at = int(sent["msgId"][-16:], 16)
        return {
            "producerGroup": PRODUCERS,
            "tranStateTableOffset": sent["queueOffset"],
            "commitLogOffset": str(at),
            "msgId": sent["UNIQ_KEY"],
            "transactionId": sent["UNIQ_KEY"],
        }

    async def end(self, half: dict[str, str], how: int, *, is_checked: bool = False) -> None:
        # No broker answers in a way that all versions share: what it has led to is looked at.
        fields: dict[str, Any] = {**half, "commitOrRollback": how, "fromTransactionCheck": is_checked}
        await self.ask(RequestCode.END_TRANSACTION, **fields)

    # Consuming

    async def messages(self, topic: str, queue: int = 0) -> list[Message]:
        """Return all messages of a queue as they are now."""
        found: list[Message] = []
        offset = 0
        while True:
            fields: dict[str, Any] = {
                "consumerGroup": "Reader",
                "topic": topic,
                "queueId": queue,
                "queueOffset": offset,
            }
            fields |= {"maxMsgNums": 32, "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0}
            fields |= {"subVersion": 0, "subscription": "*", "expressionType": "TAG"}
            answer = await self.ask(RequestCode.PULL_MESSAGE, **fields)
            if answer.code in (
                ResponseCode.PULL_NOT_FOUND,
                ResponseCode.TOPIC_NOT_EXIST,
                ResponseCode.PULL_OFFSET_MOVED,
            ):
                return found
            assert answer.code == 0, answer
            offset = int(answer.ext_fields["nextBeginOffset"])
            for one in messages_in(answer.body):
                found += inner_messages(one) if is_inner_batch(one) else [one]

    async def pop(
        self, topic: str, group: str, most: int, invisible_ms: int, *, in_order: bool = False
    ) -> list[tuple[bytes, dict[str, Any]]]:
        """Take messages of the first queue, and return the body of each and what acknowledges it."""
        asked: dict[str, Any] = {"consumerGroup": group, "topic": topic, "queueId": 0, "maxMsgNums": most}
        asked |= {"invisibleTime": invisible_ms, "pollTime": 0, "bornTime": time.time_ns() // 1_000_000}
        asked |= {"initMode": 0, "order": in_order, "expType": "TAG", "exp": "*"}
        answer = await self.ask(RequestCode.POP_MESSAGE, **asked)
        assert answer.code in (0, ResponseCode.POLLING_TIMEOUT), answer
        told = answer.ext_fields
        starts = {}
        for part in filter(None, told.get("startOffsetInfo", "").split(";")):
            flag, _, start = part.split(" ")
            starts[flag] = int(start)
        found = []
        for one in messages_in(answer.body):
            properties = dict(one.properties)
            text = properties.get("POP_CK")  # a broker adds it to what comes from a retry topic
            if text is None:
                pop_time, hidden, queue = (int(told[name]) for name in ("popTime", "invisibleTime", "reviveQid"))
                receipt = Receipt(starts["0"], pop_time, hidden, queue, "broker-java")
                text = build_receipt(receipt, "0", 0, one.queue_offset)
            ack = {"consumerGroup": group, "topic": topic, "queueId": 0, "extraInfo": text, "offset": one.queue_offset}
            found.append((one.body, ack))
        return found


def messages_in(body: bytes) -> Iterator[Message]:
    """Yield the messages of an answer."""
    while body:
        size = int.from_bytes(body[:4], "big")
        yield message_of(body[:size], parse_stored(body[:size]).physical_offset)
        body = body[size:]


def batch(*bodies: bytes) -> bytes:
    """Return the body of a batch whose messages have a tag."""
    properties = b"TAGS\x01b\x02"
    return b"".join(
        struct.pack(">5i", 22 + len(body) + len(properties), 0, 0, 0, len(body))
        + body
        + struct.pack(">h", len(properties))
        + properties
        for body in bodies
    )


def send_command(header: Send, body: bytes) -> RemotingCommand:
    """Return the request that has a broker store a message."""
    return RemotingCommand(RequestCode.SEND_MESSAGE_V2, ext_fields=build_header(header, short=True), body=body)
