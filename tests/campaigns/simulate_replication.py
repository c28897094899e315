"""A master, its slaves and clients in virtual time, one simulation from each seed, under faults that the seed chooses.

What must hold stands in ``tests/simulation/replication.py``. The tests try a few seeds; this is the long form::

    python -m tests.campaigns.simulate_replication --seeds 1:1000

A seed that fails is run again, with all that happens, by ``--seeds N --log``. The command ends with status 1 if any has
failed.
"""

# ruff: noqa: T201  its results go to standard output

import argparse
import logging
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.campaigns.simulate import MEMORY, _seeds
from tests.simulation.replication import run_seed


def main() -> None:
    """Run the campaign."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=_seeds, default=range(1, 1001), metavar="FIRST:LAST")
    parser.add_argument("--log", action="store_true", help="print what happens, as it happens")
    given = parser.parse_args()
    if not given.log:
        logging.disable(logging.CRITICAL)
        sys.unraisablehook = lambda _: None  # what was killed cannot end in good order
    begun, failed = time.monotonic(), 0
    sends = acknowledged = consumed = cuts = 0
    faults: Counter[str] = Counter()
    for seed in given.seeds:
        with tempfile.TemporaryDirectory(
            prefix="mqtool-replication-", dir=MEMORY if MEMORY.is_dir() else None
        ) as folder:
            one = run_seed(seed, Path(folder), on_note=print if given.log else None)
        sends, acknowledged, consumed = sends + one.sends, acknowledged + one.acknowledged, consumed + one.consumed
        faults += one.faults
        cuts += one.cuts
        failed += bool(one.violation)
        if one.violation:
            print(f"seed {seed}: {one.violation}")
    print(
        f"{len(given.seeds):,} seeds, {failed:,} failed; {sends:,} messages sent, {acknowledged:,} acknowledged, "
        f"{consumed:,} consumed; {cuts:,} logs cut; faults: {dict(faults.most_common())}; "
        f"{time.monotonic() - begun:,.0f} s"
    )
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
