"""Operations that may take long: they yield, so that others get their turn."""

from collections.abc import Generator
from typing import TypeVar

Result = TypeVar("Result")

Steps = Generator[None, None, Result]
"""An operation that yields between pieces of a few milliseconds, and returns its result; it may raise instead."""

QUEUES_AT_ONCE = 50
"""Queues that an operation examines before others get their turn."""
