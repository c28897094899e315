"""Completion of names in a shell: of topics and groups those that brokers have, where the command line names some.

What is not known within a second is not offered, and nothing is said of it: somebody is typing.
"""

import logging
import os
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from mqtool.commands._brokers import Brokers
    from mqtool.engine.client_runtime.wire import Wire

_WITHIN_S = 1.0


class _Name(click.ParamType):  # type: ignore[type-arg]
    """A name that a shell completes; any text is one."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ARG002
        """Return it as it is."""
        return str(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the names that begin so."""
        logging.disable(logging.CRITICAL)
        try:
            with ctx.scope(cleanup=False):  # options are told apart by where they come from
                names = self._names(ctx)
        except Exception:
            return []
        finally:
            logging.disable(logging.NOTSET)
        chosen = ctx.params.get(param.name or "") or ()
        left = {name for name in names if name.startswith(incomplete)} - (
            {*chosen} if isinstance(chosen, tuple) else set()
        )
        return [CompletionItem(name) for name in sorted(left)]

    def _names(self, ctx: click.Context) -> list[str]:
        import asyncio

        from mqtool.commands._brokers import brokers_of

        brokers = brokers_of(ctx.params, os.environ)
        if brokers is None:
            return []

        async def asked() -> list[str]:
            async with brokers.wire() as wire, asyncio.timeout(_WITHIN_S):
                return await self._asked(wire, brokers)

        return asyncio.run(asked())

    async def _asked(self, wire: "Wire", brokers: "Brokers") -> list[str]:
        raise NotImplementedError


class _TopicName(_Name):
    async def _asked(self, wire: "Wire", _: "Brokers") -> list[str]:
        from mqtool.engine.client import calls

        return await wire.request_name_server(calls.topic_names())


class _GroupName(_Name):
    async def _asked(self, _: "Wire", brokers: "Brokers") -> list[str]:
        async with brokers.admin_client() as admin:
            return sorted(await admin.group_names())


class _ProfileName(_Name):
    def _names(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        from mqtool.commands._profiles import profile_names

        return profile_names()


TOPIC_NAME = _TopicName()
GROUP_NAME = _GroupName()
PROFILE_NAME = _ProfileName()
