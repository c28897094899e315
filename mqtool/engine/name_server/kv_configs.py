"""Kv configs of a name server: names and values that administrators and clients keep there.

(RocketMQ: ``KVConfigManager``.)
"""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from mqtool.engine.name_server.refusal import NameServerReason, NameServerRefusedError
from mqtool.errors import FormatError, WriteError
from mqtool.formats.bodies import build_body
from mqtool.formats.config_tables import parse_table

MAX_KV, MAX_OF_KV, MAX_OF_ALL_KV = 10_000, 1 << 14, 1 << 22
"""How many kv configs are kept, namespaces counted too, how long a name or value of one may be, and how many characters
there are in all."""


class KvConfigs:
    """Names and values by namespace; a namespace is there as long as it has one.

    Whoever runs the name server takes the text of its file when that has changed (``take``), and writes it in a thread
    (``write_kv``). Where nobody does so (``on_wanted`` is None) it is written when it changes.
    """

    def __init__(self, path: str) -> None:
        """Read the file that keeps them, if one does.

        Raises:
            FormatError: the file is not a kv config.
        """
        self.on_wanted: Callable[[], None] | None = None
        """Is called when there is something to take."""
        self.changes = 0
        """How many there have been that are written by somebody else."""
        self._taken = 0
        self._path = Path(path) if path else None
        self._table = _load(self._path) if self._path else {}
        self._size = sum(
            len(namespace) + len(key) + len(value)
            for namespace, pairs in self._table.items()
            for key, value in pairs.items()
        )

    def put(self, namespace: str, key: str, value: str) -> None:
        """Keep a value.

        Raises:
            NameServerRefusedError: there are too many, or it is too long.
        """
        before = self.get(namespace, key)
        size = len(namespace) + len(key) + len(value)
        growth = size if before is None else len(value) - len(before)
        if (
            max(len(namespace), len(key), len(value)) > MAX_OF_KV
            or (before is None and sum(1 + len(pairs) for pairs in self._table.values()) >= MAX_KV)
            or self._size + max(growth, 0) > MAX_OF_ALL_KV
        ):
            sizes = f"{MAX_OF_KV:,} characters each and {MAX_OF_ALL_KV:,} in total"
            raise NameServerRefusedError(
                NameServerReason.BAD_ARGUMENT, f"at most {MAX_KV:,} kv configs are kept, of {sizes}"
            )
        self._size += growth
        self._table.setdefault(namespace, {})[key] = value
        self._keep()

    def get(self, namespace: str, key: str) -> str | None:
        """Return a value, None if there is none."""
        return self._table.get(namespace, {}).get(key)

    def delete(self, namespace: str, key: str) -> None:
        """Forget a value, if there is one, and with its last one the namespace: else its name were kept for good."""
        pairs = self._table.get(namespace, {})
        value = pairs.pop(key, None)
        if value is None:
            return
        self._size -= len(namespace) + len(key) + len(value)
        if not pairs:
            del self._table[namespace]
        self._keep()

    def of(self, namespace: str) -> dict[str, str] | None:
        """Return all values of a namespace by name, None if it has none."""
        return self._table.get(namespace)

    def _keep(self) -> None:
        if self._path is None:
            return
        if self.on_wanted is None:
            write_kv(self._path, self._text())
            return
        self.changes += 1
        self.on_wanted()

    def _text(self) -> bytes:
        return build_body({"configTable": self._table})

    def take(self) -> tuple[Path, bytes] | None:
        """Return the file and its text, None if that has not changed since it was taken."""
        if self._path is None or self._taken == self.changes:
            return None
        self._taken = self.changes
        return self._path, self._text()


def write_kv(path: Path, text: bytes) -> None:
    """Put a text in the place of a file, in any thread.

    Raises:
        WriteError: the disk is full, or fails, or this user may not.
    """
    beside = path.with_name(f"{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())  # who has changed it is told that it is kept: a loss of power must not take it
        beside.replace(path)
    except OSError as error:
        raise WriteError(f"{path} cannot be written: {error.strerror or error}") from error


def _load(path: Path) -> dict[str, dict[str, str]]:
    with contextlib.suppress(FileNotFoundError):
        data = path.read_bytes()
        if not data:  # a crash between creating and writing it
            return {}
        table = parse_table(data).get("configTable") or {}
        try:
            return {
                str(namespace): {str(key): str(value) for key, value in pairs.items()}
                for namespace, pairs in table.items()
                if pairs
            }
        except AttributeError as error:
            raise FormatError(f"{path} is not a kv config", offset=0) from error
    return {}
