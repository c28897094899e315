"""The law of cost for every command, by all that a store can have more of: the long form of ``test_cost.py``.

::

    python -m tests.campaigns.cost

prints how many times the steps each command takes for twice as much, and ends with status 1 where that is more than
2.2.
"""

# ruff: noqa: T201  its results go to standard output

import sys
import tempfile
from pathlib import Path

from tests.cost import COMMANDS, MOST, STORES, growth_of


def main() -> int:
    """Run everything; see the top of this file."""
    most = 0.0
    for store, (make, count) in STORES.items():
        for command in COMMANDS:
            try:
                with tempfile.TemporaryDirectory() as folder:
                    found = growth_of(command, make, count, Path(folder))
            except AssertionError as error:
                print(f"---- {command}: {store}: does not apply: {error}")
                continue
            most = max(most, found)
            print(f"{found:.2f} {command}: {store}{'  TOO MUCH' if found > MOST else ''}", flush=True)
    return int(most > MOST)


if __name__ == "__main__":
    sys.exit(main())
