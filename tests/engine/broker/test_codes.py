"""Every request gets an answer: served, or refused with a reason."""

from pathlib import Path

import pytest

from mqtool.engine.broker.processors.refused import REFUSED
from mqtool.engine.name_server.name_server import NameServer
from mqtool.engine.name_server.remoting_door import NameServerDoor
from mqtool.engine.name_server.settings import NameServerSettings
from mqtool.formats.codes import RequestCode, ResponseCode
from mqtool.formats.peer import Peer
from mqtool.formats.remoting import RemotingCommand
from tests.engine.broker.asking import broker_at_work
from tests.engine.broker.code_table import page, served, summary
from tests.engine.store.live import NOW
from tests.traces import exchanges

PAGE = Path(__file__).parents[3] / "docs" / "reports" / "codes.md"
PEER = Peer(1, "192.0.2.1", 4000)


def test_every_code_is_either_served_or_refused_with_a_reason() -> None:
    by_name_server, by_broker = served()
    assert not by_broker & REFUSED.keys()
    assert by_broker | REFUSED.keys() == {*RequestCode}
    assert by_name_server <= {*RequestCode}
    assert all(refusal.reason and refusal.code for refusal in REFUSED.values())


def test_what_belongs_to_name_servers_is_served_by_one() -> None:
    by_name_server, _ = served()
    of_name_servers = {
        code for code, refusal in REFUSED.items() if refusal.reason.startswith("this is a request for name servers")
    }
    assert of_name_servers == by_name_server


def test_the_page_of_codes_is_what_the_code_says() -> None:
    assert PAGE.read_text() == page()
    assert summary() in (PAGE.parents[2] / "README.md").read_text()


@pytest.mark.parametrize("code", [*REFUSED, 9999, 0, -1])
def test_a_request_that_is_not_served_is_refused_with_its_number_and_the_reason(code: int, tmp_path: Path) -> None:
    with broker_at_work(tmp_path) as asking:
        answer = asking.ask(code)
    refusal = REFUSED.get(code)
    assert answer.code == (refusal.code if refusal else ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
    assert answer.remark is not None
    assert (refusal.reason if refusal else str(code)) in answer.remark


def test_requests_that_a_recorded_broker_does_not_know_are_refused_alike(tmp_path: Path) -> None:
    """As clients recognize it: by code 3 and the beginning of the remark."""
    recorded = [
        one
        for name in ("mqadmin-4.9.7", "mqadmin-5.3.3")
        for one in exchanges(name)
        if one.answer is not None and one.answer.command.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    ]
    with broker_at_work(tmp_path) as asking:
        for one in recorded:
            assert one.answer is not None
            ours, theirs = asking.replay(one), one.answer.command
            assert ours.code == theirs.code
            assert (ours.remark or "").startswith(theirs.remark or " ")


@pytest.mark.parametrize(
    "code", [9999, RequestCode.SEND_MESSAGE, RequestCode.POP_MESSAGE, RequestCode.GET_BROKER_HA_STATUS]
)
def test_a_name_server_refuses_what_is_for_brokers_and_what_nobody_knows(code: int) -> None:
    rules = NameServerDoor(NameServer(NameServerSettings(), NOW))
    [(peer, answer)] = rules.handle(RemotingCommand(code, opaque=7), PEER, NOW)
    assert (peer, answer.code, answer.opaque) == (PEER, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, 7)
    assert answer.remark == f" request type {code} not supported"
