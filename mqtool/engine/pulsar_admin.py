"""The HTTP pages for Pulsar administrators, and for topic look-ups of clients: a row of ``PAGES`` for each.

Changes are on disk before a page answers. (Rules: pulsar.md 10.)
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from mqtool.engine.broker.saves import Saves
from mqtool.engine.broker.sessions import Session
from mqtool.engine.http_server import HttpServer
from mqtool.engine.pulsar.admin import FORBIDDEN, LATEST, AdminError, MessagePosition, PulsarAdmin
from mqtool.engine.pulsar.names import PulsarTopicName
from mqtool.engine.pulsar_server import PulsarServer
from mqtool.errors import MqtoolError

_MAX_BODY = 1 << 16
_MAX_DIGITS = 20
_DONE, _BAD = 204, 400


class _Asked(NamedTuple):
    """A request for a page."""

    admin: PulsarAdmin
    path: Mapping[str, str]
    query: Mapping[str, str]
    body: Any  # of JSON, None if there is none
    now: int  # ms
    host: str
    """Where the client has reached the pages."""
    page: str
    """The same with the port."""

    def number(self, name: str) -> int:
        """A number in the path."""
        text = self.path[name]
        if not (text.isascii() and text.isdigit() and len(text) < _MAX_DIGITS):
            raise AdminError(_BAD, f"{name} is not a number")
        return int(text)

    @property
    def topic(self) -> PulsarTopicName:
        return self.admin.name(self.path["tenant"], self.path["namespace"], self.path["topic"])

    @property
    def space(self) -> tuple[str, str]:
        return self.path["tenant"], self.path["namespace"]

    def flag(self, name: str) -> bool:
        return self.query.get(name, "").lower() == "true"

    @property
    def partitions(self) -> int:
        """The number in the body, alone or with properties of the topic."""
        count = self.body.get("partitions") if isinstance(self.body, dict) else self.body
        if type(count) is not int:
            raise AdminError(_BAD, "The body is not a number of partitions")
        return count

    @property
    def is_on(self) -> bool:
        """The boolean in the body; an empty body is false."""
        if self.body not in (True, False, None) or type(self.body) is int:
            raise AdminError(_BAD, "The body is neither true nor false")
        return bool(self.body)

    @property
    def position(self) -> MessagePosition:
        """The id in the body, or that of the latest message without a body."""
        if self.body is None:
            return LATEST
        row = self.body
        if not isinstance(row, dict):
            raise AdminError(_BAD, "The body is not a message id")
        numbers = [row.get("ledgerId"), row.get("entryId"), row.get("batchIndex", -1)]
        if any(type(number) is not int for number in numbers):
            raise AdminError(_BAD, "The body is not a message id")
        is_excluded = bool(row.get("excluded", row.get("isExcluded", False)))
        return MessagePosition(int(numbers[0]), int(numbers[1]), int(numbers[2]), is_excluded)


_TOPIC = "/admin/v2/persistent/{tenant}/{namespace}/{topic}"
_SUBSCRIPTION = _TOPIC + "/subscription/{subscription}"
_LOOKUP = "/lookup/v2/topic/persistent/{tenant}/{namespace}/{topic}"
_SCHEMA = "/admin/v2/schemas/{tenant}/{namespace}/{topic}/schema"
_SPACE = "/admin/v2/persistent/{tenant}/{namespace}"

PAGES: list[tuple[str, str, Callable[[_Asked], Any]]] = [
    ("GET", "/admin/v2/clusters", lambda ask: ask.admin.clusters()),
    ("GET", "/admin/v2/brokers/health", lambda _: "ok"),
    ("GET", "/admin/v2/tenants", lambda ask: ask.admin.tenants()),
    ("GET", "/admin/v2/namespaces/{tenant}", lambda ask: ask.admin.namespaces(ask.path["tenant"])),
    ("GET", "/admin/v2/namespaces/{tenant}/{namespace}/topics", lambda ask: ask.admin.topics(*ask.space)),
    ("GET", _SPACE, lambda ask: ask.admin.topics(*ask.space)),
    ("GET", _SPACE + "/partitioned", lambda ask: ask.admin.partitioned_topics(*ask.space)),
    ("GET", "/admin/v2/non-persistent/{tenant}/{namespace}", lambda _: []),
    ("GET", "/admin/v2/non-persistent/{tenant}/{namespace}/partitioned", lambda _: []),
    (
        "GET",
        _TOPIC + "/partitions",
        lambda ask: ask.admin.partitions(ask.topic, allows_creation=ask.flag("checkAllowAutoCreation")),
    ),
    ("PUT", _TOPIC + "/partitions", lambda ask: ask.admin.create(ask.topic, ask.partitions, ask.now)),
    ("POST", _TOPIC + "/partitions", lambda ask: ask.admin.widen(ask.topic, ask.partitions, ask.now)),
    (
        "DELETE",
        _TOPIC + "/partitions",
        lambda ask: ask.admin.delete(ask.topic, ask.now, is_partitioned=True, by_force=ask.flag("force")),
    ),
    ("PUT", _TOPIC, lambda ask: ask.admin.create(ask.topic, None, ask.now)),
    (
        "DELETE",
        _TOPIC,
        lambda ask: ask.admin.delete(ask.topic, ask.now, is_partitioned=False, by_force=ask.flag("force")),
    ),
    ("POST", _TOPIC + "/terminate", lambda ask: ask.admin.terminate(ask.topic, ask.now)),
    ("POST", _TOPIC + "/terminate/partitions", lambda ask: ask.admin.terminate_partitions(ask.topic, ask.now)),
    ("GET", _TOPIC + "/deduplicationEnabled", lambda ask: ask.admin.deduplicates(ask.topic)),
    ("POST", _TOPIC + "/deduplicationEnabled", lambda ask: ask.admin.deduplicate(ask.topic, ask.is_on)),
    ("DELETE", _TOPIC + "/deduplicationEnabled", lambda ask: ask.admin.deduplicate(ask.topic, False)),
    ("GET", _TOPIC + "/stats", lambda ask: ask.admin.stats(ask.topic)),
    (
        "GET",
        _TOPIC + "/partitioned-stats",
        lambda ask: ask.admin.partitioned_stats(ask.topic, by_partition=ask.query.get("perPartition") != "false"),
    ),
    ("GET", _TOPIC + "/lastMessageId", lambda ask: ask.admin.last_message_id(ask.topic)),
    ("GET", _TOPIC + "/subscriptions", lambda ask: ask.admin.subscriptions(ask.topic)),
    (
        "PUT",
        _SUBSCRIPTION,
        lambda ask: ask.admin.subscribe(ask.topic, ask.path["subscription"], ask.position, ask.now),
    ),
    (
        "DELETE",
        _SUBSCRIPTION,
        lambda ask: ask.admin.unsubscribe(ask.topic, ask.path["subscription"], ask.now, by_force=ask.flag("force")),
    ),
    (
        "POST",
        _SUBSCRIPTION + "/skip_all",
        lambda ask: ask.admin.skip(ask.topic, ask.path["subscription"], None, ask.now),
    ),
    (
        "POST",
        _SUBSCRIPTION + "/skip/{count}",
        lambda ask: ask.admin.skip(ask.topic, ask.path["subscription"], ask.number("count"), ask.now),
    ),
    (
        "POST",
        _SUBSCRIPTION + "/resetcursor/{timestamp}",
        lambda ask: ask.admin.reset(ask.topic, ask.path["subscription"], ask.number("timestamp"), ask.now),
    ),
    (
        "POST",
        _SUBSCRIPTION + "/resetcursor",
        lambda ask: ask.admin.reset(ask.topic, ask.path["subscription"], ask.position, ask.now),
    ),
    ("GET", _SCHEMA, lambda ask: ask.admin.schema(ask.topic)),
    ("GET", _SCHEMA + "/{version}", lambda ask: ask.admin.schema(ask.topic, ask.number("version"))),
    (
        "GET",
        _LOOKUP,
        lambda ask: ask.admin.lookup(ask.topic, ask.host, ask.page),
    ),
]
"""Method, path, and the function that answers: with nothing, a text, or JSON."""


_FOR_CLIENTS = frozenset((_TOPIC + "/partitions", _LOOKUP, _SCHEMA, _SCHEMA + "/{version}"))
"""Pages for clients that may produce to a topic, or consume from it; the others are for administrators."""


def pulsar_admin(server: PulsarServer) -> HttpServer:
    """Return the pages of a broker that serves Pulsar clients."""
    admin, saves = PulsarAdmin(server.rules), server.rules.broker.saves
    visitor = Session("", "")

    def page_of(path: str, answer: Callable[[_Asked], Any]) -> Callable[[Request], Any]:
        async def page(request: Request) -> Response:
            try:
                body = await _body(request)
                now = server.clock()
                saves.begin_request()
                host, port = request.scope["server"]
                host = f"[{host}]" if ":" in host else host
                path_parts = {name: unquote(part) for name, part in request.path_params.items()}
                asked = _Asked(admin, path_parts, request.query_params, body, now, host, f"{host}:{port}")
                client = request.client.host if request.client else ""
                token = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
                identity = admin.check_access(token, client, now)
                if request.method == "GET" and path in _FOR_CLIENTS:
                    admin.check_client(identity, client, asked.topic)
                else:
                    admin.check_administrator(identity, client)
                result = answer(asked)
                await _saved(saves, visitor, now)
            except AdminError as error:
                return _refusal(error.status, error.reason)
            except MqtoolError as error:
                return _refusal(500, str(error))
            if result is None:
                return Response(status_code=_DONE)
            return PlainTextResponse(result) if isinstance(result, str) else JSONResponse(result)

        return page

    routes = [Route(path, page_of(path, answer), methods=[method]) for method, path, answer in PAGES]
    return HttpServer(_encoded(Starlette(routes=routes)))


def _encoded(pages: ASGIApp) -> ASGIApp:
    """Return pages that get paths as they were sent: a slash within a name is not one between names."""

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["path"] = scope["raw_path"].decode("latin-1")
        await pages(scope, receive, send)

    return run


async def _body(request: Request) -> Any:
    """Return the parsed body of a request, None if it is empty."""
    if "origin" in request.headers and request.method != "GET":  # a page of another site in a browser
        raise AdminError(FORBIDDEN, "Pages of other sites are not allowed to change anything here")
    data = bytearray()
    async for piece in request.stream():
        data += piece
        if len(data) > _MAX_BODY:
            raise AdminError(413, f"The body is longer than {_MAX_BODY:,} bytes")
    try:
        return json.loads(data) if data.strip() else None
    except (ValueError, RecursionError):
        raise AdminError(_BAD, "The body is not JSON") from None


async def _saved(saves: Saves, visitor: Session, now: int) -> None:
    """Wait until changes are on disk; raises ``MqtoolError`` if that fails."""
    if not (changes := saves.changes_of_request):
        return
    done: asyncio.Future[MqtoolError | None] = asyncio.get_running_loop().create_future()

    def then(failure: MqtoolError | None, now: int) -> None:  # noqa: ARG001
        if not done.done():
            done.set_result(failure)

    saves.wait(changes, visitor, then, now)
    if (failure := await done) is not None:
        raise failure


def _refusal(status: int, reason: str) -> Response:
    return JSONResponse({"reason": reason}, status)
