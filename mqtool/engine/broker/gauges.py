"""The current values of a gauge of a part of a broker, or of a door."""

from typing import NamedTuple

Row = tuple[tuple[str, ...], float]
"""The values of the labels, and the gauge's own."""


class Gauge(NamedTuple):
    """A gauge with all its rows."""

    name: str
    meaning: str
    labels: tuple[str, ...]
    rows: list[Row]
