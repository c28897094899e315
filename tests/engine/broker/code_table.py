"""The page ``docs/reports/codes.md``: which requests name server and broker serve, and how the others are refused.

``python -m tests.engine.broker.code_table > docs/reports/codes.md`` makes it again.
"""

from collections.abc import Iterator

from mqtool.engine.broker.processors.refused import REFUSED
from mqtool.engine.broker.remoting_door import PROCESSORS
from mqtool.engine.name_server.remoting_door import PROCESSORS as OF_NAME_SERVER
from mqtool.formats.codes import RequestCode

_HEAD = """\
# Request codes

What `mqtool serve` answers to each request of RocketMQ 4.x and 5.x (made from the tables of the code). A name server
refuses whatever it does not serve, and whatever number is not in this table, with 3 (`REQUEST_CODE_NOT_SUPPORTED`), a
broker likewise; its answer gives the reason that stands here. A request that wants no answer gets none.

In all: {summary}.

| code | name | name server | broker |
|---|---|---|---|
"""


def served() -> tuple[set[int], set[int]]:
    """Return the codes that a name server serves, and those of a broker."""
    return {*OF_NAME_SERVER}, {*PROCESSORS}


def summary() -> str:
    """Return how many there are of each kind, as the page and the README tell."""
    by_name_server, by_broker = served()
    return (
        f"{len(RequestCode)} codes, {len(by_broker)} served by a broker and {len(by_name_server)} by a name server, "
        f"{len({*RequestCode} - by_broker - by_name_server)} refused with the reason"
    )


def page() -> str:
    """Return the page."""
    return _HEAD.format(summary=summary()) + "".join(f"{row}\n" for row in _rows())


def _rows() -> Iterator[str]:
    by_name_server, by_broker = served()
    for code in RequestCode:
        name_server = "served" if code in by_name_server else "3"
        broker = "served" if code in by_broker else _refused(code)
        yield f"| {int(code)} | {code.name} | {name_server} | {broker} |"


def _refused(code: RequestCode) -> str:
    refusal = REFUSED.get(code)
    return f"{refusal.code:d}: {refusal.reason.strip()}" if refusal else "3"


if __name__ == "__main__":
    print(page(), end="")  # noqa: T201
