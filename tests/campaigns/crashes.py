"""Ends of a broker at every call of its disk: what a kill leaves, and what losses of power may leave.

Clients work with a broker on a disk that is recorded; the record is cut after each call, what the broker finds is made
of it, all messages come to their ends, and none that was acknowledged may be lost or delivered twice. The tests try
some of the cuts; this is the long form::

    python -m tests.campaigns.crashes --seeds 3 --step 5

It prints for each way to end how often it was tried, how many messages had been acknowledged in all, and how many
stores had to be recovered as damaged ones. It ends with an error after the first way in which something is not as it
should be, and says what and after which call.
"""

# ruff: noqa: T201  its results go to standard output

import argparse
import random
import tempfile
import time
from pathlib import Path

from tests.crash import Left
from tests.engine.broker.test_broker_crashes import WatchingDisk, trial_cuts, try_one, worked


def main() -> None:
    """Run the campaign."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="how many different days of work")
    parser.add_argument("--first", type=int, default=1, help="the first of these days")
    parser.add_argument("--step", type=int, default=5, help="cut after every so manieth call")
    given = parser.parse_args()
    begun = time.monotonic()
    for seed in range(given.first, given.first + given.seeds):
        with tempfile.TemporaryDirectory() as name:
            base, place = Path(name) / "base", Path(name) / "place"
            base.mkdir()
            place.mkdir()
            disk = WatchingDisk(base)
            sent = worked(base, disk, seed)
            for sample, chance in enumerate([*Left, random.Random(seed), random.Random(-seed)]):
                ends = [try_one(disk, sent, cut, chance, place) for cut in trial_cuts(disk, sample, given.step)]
                known, repaired = sum(end.known for end in ends), sum(end.was_repaired for end in ends)
                what = chance.name if isinstance(chance, Left) else "BY CHANCE"
                if faults := [fault for end in ends for fault in end.faults]:
                    raise SystemExit(f"seed {seed}, {what}:\n" + "\n".join(faults))
                print(
                    f"seed {seed}, {what}: {len(ends):,} ends, {known:,} messages acknowledged before, none lost, "
                    f"none twice, but perhaps in {repaired:,} stores recovered as damaged; "
                    f"{time.monotonic() - begun:,.0f} s",
                    flush=True,
                )


if __name__ == "__main__":
    main()
