"""The way of a message into the store: straight, or by where it has to wait first."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mqtool.engine.store.append_result import AppendResult
    from mqtool.engine.store.message_store import MessageStore
    from mqtool.formats.new_message import NewMessage

Detour = Callable[["NewMessage", int], "AppendResult | None"]
"""Changes a message, and where it goes, so that it waits elsewhere first; returns a result to refuse it."""


class Intake:
    """Stores messages, by a detour where their properties ask for one."""

    def __init__(self, store: "MessageStore") -> None:
        self.store = store
        self._detours: list[tuple[frozenset[bytes], Detour]] = []
        self._names: frozenset[bytes] = frozenset()

    def add_detour(self, names: Iterable[bytes], detour: Detour) -> None:
        """Have a detour asked, behind those that there are, for messages with a property of one of these names."""
        self._detours.append((frozenset(names), detour))
        self._names |= self._detours[-1][0]

    def put(self, message: "NewMessage", now: int) -> "AppendResult":
        """Store a message.

        Returns:
            Where it is stored, or why it is not.
        """
        if not self._names.isdisjoint(message.pairs):
            for names, detour in self._detours:
                if not names.isdisjoint(message.pairs) and (refused := detour(message, now)) is not None:
                    return refused
        return self.store.append(message, now)
