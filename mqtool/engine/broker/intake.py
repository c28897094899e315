"""The way of a message into the store: straight, or by where it has to wait first."""

from collections.abc import Callable
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
        self.detours: list[tuple[bytes, Detour]] = []
        """In the order in which they are asked, by a word that the properties of such a message have."""

    def put(self, message: "NewMessage", now: int) -> "AppendResult":
        """Store a message.

        Returns:
            Where it is stored, or why it is not.
        """
        properties = message.properties
        for word, detour in self.detours:
            if word in properties:
                if (refused := detour(message, now)) is not None:
                    return refused
                properties = message.properties
        return self.store.append(message, now)
