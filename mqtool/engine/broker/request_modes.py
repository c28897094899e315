"""How groups consume topics, by pull or by pop, as set at the broker: ``config/messageRequestMode.json``.

(Rules: store.md 10.7. RocketMQ: ``MessageRequestModeManager``.)
"""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from mqtool.engine.broker.config_files import load_table
from mqtool.engine.broker.limits import MAX_MODES, check_room
from mqtool.engine.broker.saves import Saves
from mqtool.errors import FormatError
from mqtool.formats.config_tables import Table, build_table_in_pieces

PULL, POP = "PULL", "POP"
_MEMBER = "messageRequestModeMap"


class RequestMode(NamedTuple):
    """How one group consumes one topic."""

    mode: str  # PULL or POP
    share_count: int  # for pops: how many members after one in the list also read its queues; 0: all read all


BY_PULL = RequestMode(PULL, -1)
"""The default."""


class RequestModes:
    """The modes by topic and group; each change is queued for saving before the call returns."""

    def __init__(self, folder: Path, saves: Saves | None = None) -> None:
        """Read the table below the folder ``config``.

        Raises:
            FormatError: it cannot be read.
        """
        self._path = folder / "messageRequestMode.json"
        self._saves = saves or Saves()
        _, self._modes = load_table(self._path, _parse)

    def get(self, topic: str, group: str) -> RequestMode:
        """Return how a group consumes a topic."""
        return self._modes.get(topic, {}).get(group, BY_PULL)

    def set(self, topic: str, group: str, mode: RequestMode) -> None:
        """Set how a group consumes a topic; raises ``LimitError`` if there are too many modes."""
        check_room(
            sum(map(len, self._modes.values())), group not in self._modes.get(topic, ()), MAX_MODES, "request modes"
        )
        self._modes.setdefault(topic, {})[group] = mode
        self._saves.want(self._path, self._pieces)

    def replace(self, table: Table) -> None:
        """Take over the table of a master; raises ``FormatError`` if it is malformed."""
        modes = _parse(table)
        if modes != self._modes:
            self._modes = modes
            self._saves.want(self._path, self._pieces)

    def delete_topics(self, topics: Collection[str], now: int) -> None:  # noqa: ARG002
        """Forget the modes of topics."""
        if [topic for topic in topics if self._modes.pop(topic, None)]:
            self._saves.want(self._path, self._pieces)

    def table(self) -> Table:
        """Return all modes as the file and the body of GET_ALL_MESSAGE_REQUEST_MODE have them."""
        return {_MEMBER: dict(self._rows())}

    def _pieces(self) -> Iterator[bytes]:
        return build_table_in_pieces({}, _MEMBER, self._rows())

    def _rows(self) -> Iterator[tuple[str, Table]]:
        for topic, groups in list(self._modes.items()):
            yield (
                topic,
                {
                    group: {
                        "consumerGroup": group,
                        "mode": mode.mode,
                        "popShareQueueNum": mode.share_count,
                        "topic": topic,
                    }
                    for group, mode in groups.items()
                },
            )


def _parse(table: Table) -> dict[str, dict[str, RequestMode]]:
    try:
        return {
            topic: {
                group: RequestMode(members["mode"], members["popShareQueueNum"]) for group, members in groups.items()
            }
            for topic, groups in (table.get(_MEMBER) or {}).items()
        }
    except (AttributeError, KeyError, TypeError) as error:
        raise FormatError("its members are not request modes", offset=0) from error
