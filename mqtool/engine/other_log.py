"""Requests for the log of another broker of the same name: ends, records, checksums.

(Rules: remoting.md 3.8.)
"""

import contextlib
import json
import logging
from collections.abc import Callable
from typing import NamedTuple

from mqtool.engine.broker.following import STATUS
from mqtool.engine.broker.settings import BrokerSettings
from mqtool.engine.remoting.client import RemotingClient
from mqtool.engine.replication.comparing import ComparedRange
from mqtool.engine.streams.tls import TlsSettings
from mqtool.errors import FormatError, MqtoolError, UnavailableError, UsageError
from mqtool.formats.bodies import parse_body, parse_cluster_info
from mqtool.formats.codes import RequestCode, ResponseCode
from mqtool.formats.headers import LogBlocks, ViewMessage, build_header
from mqtool.formats.remoting import RemotingCommand
from mqtool.formats.signing import Credentials

log = logging.getLogger(__name__)

_ASK_MS = 3000
_CREDENTIALS = "innerClientAuthenticationCredentials"
Connect = Callable[..., RemotingClient]
"""Returns a client of equivalent servers of another broker, given their addresses."""


def connecting(settings: BrokerSettings, tls: TlsSettings) -> Connect:
    """Return how a broker connects to others of its name: what it requests is signed, and encrypted, as is set.

    Raises:
        UsageError: a setting makes no sense.
    """
    credentials = credentials_of(settings.inner_credentials)
    return lambda *addresses: RemotingClient(addresses, tls.as_client, credentials=credentials)


def credentials_of(text: str) -> Credentials | None:
    """Return the account that a slave's requests are signed with (``innerClientAuthenticationCredentials``).

    >>> credentials_of('{"accessKey": "slave", "secretKey": "12345678"}')
    Credentials(access_key='slave', secret_key='12345678')

    Raises:
        UsageError: the setting has no account.
    """
    if not text.strip():
        return None
    with contextlib.suppress(ValueError, KeyError, TypeError):
        members = json.loads(text)
        return Credentials(str(members["accessKey"]), str(members["secretKey"]))
    raise UsageError(f'{_CREDENTIALS}: expected {{"accessKey": "..", "secretKey": ".."}}')


class NotToldError(MqtoolError):
    """A broker refuses a request."""


class OtherLog:
    """Sends requests to one broker; each call raises ``UnavailableError`` if there is no answer."""

    def __init__(self, client: RemotingClient) -> None:
        self._client = client

    async def ask(self, code: int) -> RemotingCommand:
        """Return the answer to a request without fields.

        Raises:
            NotToldError: the request is refused.
        """
        answer = await self._client.invoke(RemotingCommand(code))
        if answer.code != ResponseCode.SUCCESS:
            raise NotToldError(f"it refused request {code}: {answer.remark}")
        return answer

    async def record(self, at: int) -> bytes | None:
        """Return the record that begins at an address, None if none does.

        Raises:
            NotToldError: it does not say.
        """
        fields = build_header(ViewMessage(at))
        answer = await self._client.invoke(RemotingCommand(RequestCode.VIEW_MESSAGE_BY_ID, ext_fields=fields))
        if answer.code == ResponseCode.SUCCESS:
            return answer.body
        if answer.code == ResponseCode.SYSTEM_ERROR and "can not find message" in (answer.remark or ""):
            return None
        raise NotToldError(f"it refused request {RequestCode.VIEW_MESSAGE_BY_ID}: {answer.remark}")

    async def checksums(self, blocks: ComparedRange) -> list[int]:
        """Return the checksum of each of some blocks, of an mqtool broker.

        Raises:
            NotToldError: it does not say.
        """
        fields = build_header(LogBlocks(*blocks))
        answer = await self._client.invoke(RemotingCommand(RequestCode.GET_LOG_CHECKSUMS, ext_fields=fields))
        if answer.code != ResponseCode.SUCCESS:
            raise NotToldError(f"it refused request {RequestCode.GET_LOG_CHECKSUMS}: {answer.remark}")
        try:
            return [int(checksum) for checksum in parse_body(answer.body)["checksums"]]
        except (FormatError, KeyError, TypeError, ValueError) as error:
            raise NotToldError("it does not report checksums of its log") from error


async def members(name_server: RemotingClient, settings: BrokerSettings) -> dict[int, str]:
    """Return the addresses of all brokers of a name, by id, as a name server knows them."""
    try:
        answer = await name_server.invoke(RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO), _ASK_MS)
        broker = parse_cluster_info(answer.body).brokers.get(settings.broker_name)
    except MqtoolError:
        return {}
    return dict(broker.addresses) if broker and broker.cluster == settings.cluster_name else {}


class KnownEpoch(NamedTuple):
    """What a broker knows of the last change of roles; as values they are ordered by the right to be the master."""

    epoch: int = 0  # 0 if it knows none, or cannot be asked
    is_master: bool = False  # by that change; a slave has only learned of it
    is_no_slave: bool = False  # it answers, and does not say that it is one; RocketMQ brokers never do


async def epoch_at(client: RemotingClient) -> KnownEpoch:
    """Return the epoch that a broker knows; closes the client."""
    from mqtool.engine.broker.kept_role import EPOCH  # loads numpy

    try:
        answer = await OtherLog(client).ask(RequestCode.GET_BROKER_RUNTIME_INFO)
        table = parse_body(answer.body)["table"]
        text = str(table.get(EPOCH, "0"))
        epoch = int(text) if text.isdecimal() else 0
        return KnownEpoch(epoch, epoch > 0 and STATUS not in table, STATUS not in table)
    except UnavailableError:  # most likely its own address, from before
        return KnownEpoch()
    except (MqtoolError, KeyError, TypeError, AttributeError) as error:
        reason = str(error) if isinstance(error, NotToldError) else "its answer cannot be read"
        log.warning("%s was not asked whether there is another master: %s", client.addresses[0], reason)
        return KnownEpoch()
    finally:
        with contextlib.suppress(MqtoolError):
            await client.close()
