"""How messages get into the store: directly, or through put hooks that make them wait first."""

from collections.abc import Callable, Iterable, Sequence, Set
from typing import TYPE_CHECKING

from mqtool.formats.new_message import one_of
from mqtool.formats.property_names import DELAY

if TYPE_CHECKING:
    from mqtool.engine.store.append_result import AppendResult
    from mqtool.engine.store.message_store import MessageStore
    from mqtool.formats.new_message import BatchElement, NewMessage

PutHook = Callable[["NewMessage", int], "AppendResult | None"]
"""Changes a message and its destination, so that it waits elsewhere first; returns a result to refuse it."""

_OF_ONE_SENT_AGAIN = frozenset((DELAY.encode(),))


class Intake:
    """Stores messages, through put hooks if their properties require it."""

    def __init__(self, store: "MessageStore") -> None:
        self.store = store
        self._put_hooks: list[tuple[frozenset[bytes], PutHook]] = []
        self._names: frozenset[bytes] = frozenset()

    def add_put_hook(self, names: Iterable[bytes], put_hook: PutHook) -> None:
        """Add a put hook, after existing ones, for messages with a property of one of these names."""
        self._put_hooks.append((frozenset(names), put_hook))
        self._names |= self._put_hooks[-1][0]

    def put(self, message: "NewMessage", now: int, *, is_again: bool = False) -> "AppendResult":
        """Store a message, which has waited before if ``is_again``.

        Returns:
            Where it is stored, or why it is not.
        """
        if not self._names.isdisjoint(message.pairs):
            refused = self._put_hook(message, message.pairs.keys(), now)
            if refused is not None:
                return refused
        return self.store.append(message, now, is_again=is_again)

    def put_each(
        self,
        run: "NewMessage",
        elements: Sequence["BatchElement"],
        pairs_of_each: Sequence[dict[bytes, bytes]],
        now: int,
    ) -> list["AppendResult"]:
        """Store messages, if possible in one write; the arguments are those of ``Appender.append_each``."""
        if all(map(self._names.isdisjoint, pairs_of_each)):
            return self.store.append_each(run, elements, pairs_of_each, now)
        return [self.put(one_of(run, element), now) for element in elements]

    def put_again(self, message: "NewMessage", now: int) -> "AppendResult":
        """Store a message that a consumer had: of its properties only a delay takes effect.

        Properties of messages in a batch never took effect, nor were permissions for them checked.
        """
        refused = self._put_hook(message, _OF_ONE_SENT_AGAIN & message.pairs.keys(), now)
        return self.store.append(message, now, is_again=True) if refused is None else refused

    def _put_hook(self, message: "NewMessage", asked_by: Set[bytes], now: int) -> "AppendResult | None":
        """Call the put hooks for properties of these names."""
        for names, put_hook in self._put_hooks:
            if not names.isdisjoint(asked_by) and (refused := put_hook(message, now)) is not None:
                return refused
        return None
