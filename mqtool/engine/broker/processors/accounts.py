"""Accounts of ACL 1.0, shown and changed by request, for the commands of ``mqadmin`` 4.x.

If access control is off, or the request is invalid, nothing is changed and the answer says so.
(Rules: remoting.md 8.2. RocketMQ: ``AdminBrokerProcessor``, ``PlainPermissionManager.updateAccessConfig``.)
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from mqtool.engine.broker.acl import AccessControl
from mqtool.engine.broker.operations.accounts import (
    checked_access,
    delete_account,
    put_account,
)
from mqtool.engine.broker.operations.refusal import OperationRefusedError
from mqtool.errors import FormatError, MqtoolError
from mqtool.formats.bodies import build_body
from mqtool.formats.codes import RequestCode, ResponseCode
from mqtool.formats.headers import (
    AccessKey,
    AclVersionResponse,
    PutAccount,
    PutWhiteAddresses,
    build_header,
    parse_header,
)
from mqtool.formats.plain_acl import account_members

if TYPE_CHECKING:
    from mqtool.engine.broker.broker import BrokerController
    from mqtool.engine.broker.processors.request import Answer, BrokerRequest, Processor


def _put(access: AccessControl, request: "BrokerRequest") -> None:
    header = parse_header(PutAccount, request.command.ext_fields)
    changes = {
        "secretKey": header.secret_key,
        "whiteRemoteAddress": header.white_remote_address,
        "admin": header.admin,
        "defaultTopicPerm": header.default_topic_perm,
        "defaultGroupPerm": header.default_group_perm,
        "topicPerms": _split(header.topic_perms),
        "groupPerms": _split(header.group_perms),
    }
    put_account(access, header.access_key, changes, request.now)


def _delete(access: AccessControl, request: "BrokerRequest") -> None:
    delete_account(access, parse_header(AccessKey, request.command.ext_fields).access_key, request.now)


def _put_white_addresses(access: AccessControl, request: "BrokerRequest") -> None:
    header = parse_header(PutWhiteAddresses, request.command.ext_fields)
    access.put_white_addresses(_split(header.global_white_addrs), request.now)


def _split(text: str | None) -> list[str]:
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def _changing(change: Callable[[AccessControl, "BrokerRequest"], None], code: ResponseCode) -> "Processor":
    """Return a processor whose refusals have a code of their own."""

    def process(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
        try:
            change(checked_access(broker.access), request)
        except FormatError as error:
            return request.command.answer(code, remark=error.reason)
        except (MqtoolError, OperationRefusedError) as error:
            return request.command.answer(code, remark=str(error))
        return request.command.answer()

    return process


def _tell_version(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    counter, timestamp = checked_access(broker.access).acl.version
    version = {"counter": counter, "timestamp": timestamp, "stateVersion": 0}
    settings = broker.settings
    header = AclVersionResponse(
        build_body(version).decode(),
        build_body({settings.acl_file: version}).decode(),
        settings.broker_name,
        broker.address,
        settings.cluster_name,
    )
    return request.command.answer(ext_fields=build_header(header))


def _tell_accounts(broker: "BrokerController", request: "BrokerRequest") -> "Answer":
    acl = checked_access(broker.access).acl
    body = {
        "globalWhiteAddrs": [*acl.white_addresses],
        "plainAccessConfigs": [account_members(account) for account in acl.accounts.values()],
    }
    return request.command.answer(body=build_body(body))


PROCESSORS: "dict[int, Processor]" = {
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: _changing(_put, ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED),
    RequestCode.DELETE_ACL_CONFIG: _changing(_delete, ResponseCode.DELETE_ACL_CONFIG_FAILED),
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: _changing(
        _put_white_addresses, ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED
    ),
    RequestCode.GET_BROKER_CLUSTER_ACL_INFO: _tell_version,
    RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: _tell_accounts,
}
