"""The law of agreement: what ``doctor``, ``--as-broker`` and ``verify`` say of one store, and where advice leads."""

from collections.abc import Callable
from pathlib import Path

from mqtool.engine.store.paths import StoreConfig


def follow(store: Path, config: StoreConfig, broken: Callable[[str, str, str], None]) -> None:
    """Ask the doctor, hold the answer against the others', and follow the advice to its end."""
