"""Whole clusters with their clients in virtual time, one from each seed, under faults that the seed chooses.

Name servers, brokers on their stores, and the producers and consumers of mqtool, all unchanged, run in one event loop
whose time jumps; the network between them is delayed, stalled, cut and divided; servers are stopped, killed and started
again, processes stall, consumers come and go. In the end, and where it can be seen meanwhile, it must hold that

- each acknowledged message was consumed by each group that wants it, or became its dead letter, and is where its
  producer was told that it is; what was rolled back was consumed by nobody, and what is delayed not too early;
- each queue belongs to one member of each group;
- orderly groups have consumed each queue in order, one member at a time unless a fault explains more;
- no offset was ever committed beyond what a listener had finished; when all is quiet, all of them are at the end;
- each store is sound, and no program has logged a fault.

The tests try a few seeds; these are the long forms::

    python -m tests.campaigns.simulate --seeds 1:1000
    python -m tests.campaigns.simulate --seeds 1 --clients 1000

A seed that fails is run again, with all that happens, by ``--seeds N --log``: it goes exactly as it went. The command
ends with status 1 if any has failed.
"""

# ruff: noqa: T201  its results go to standard output

import argparse
import math
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.simulation.scenario import SimulationOutcome, Size, run_seed

MEMORY = Path("/dev/shm")
"""Where stores are fast; without it they are where temporary files are."""
_MAX_MEMBERS = 30
"""Of a group where there are many clients: a few more than a topic has queues."""


def size_of(clients: int) -> Size:
    """Return the size of a simulation with about so many clients: a tenth of them producers."""
    producers, members = max(1, clients // 10), max(2, min(_MAX_MEMBERS, math.isqrt(clients)))
    groups = max(1, (clients - producers) // members)
    return Size((producers, producers), (groups, groups), (members, members), (3, 3), (30.0, 30.0))


def run(seed: int, size: Size | None = None, on_note: Callable[[str], None] | None = None) -> SimulationOutcome:
    """Run one seed in a folder that is gone afterwards."""
    folder = MEMORY if MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="mqtool-simulation-", dir=folder) as name:
        return run_seed(seed, Path(name), size, on_note)


def _seeds(text: str) -> range:
    first, _, last = text.partition(":")
    return range(int(first), int(last or first) + 1)


def main() -> None:
    """Run the campaign."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=_seeds, default=range(1, 1001), metavar="FIRST:LAST")
    parser.add_argument("--clients", type=int, help="about so many in each seed, in place of what the seed says")
    parser.add_argument("--log", action="store_true", help="print what happens, as it happens")
    given = parser.parse_args()
    size, on_note = (size_of(given.clients) if given.clients else None), (print if given.log else None)
    more = f" --clients {given.clients}" if given.clients else ""
    begun, failed = time.monotonic(), 0
    faults: Counter[str] = Counter()
    clients = sends = acknowledged = deliveries = operations = 0
    virtual_s = 0.0
    for seed in given.seeds:
        one = run(seed, size, on_note)
        faults += one.faults
        clients, sends, acknowledged = clients + one.clients, sends + one.sends, acknowledged + one.acknowledged
        deliveries, operations = deliveries + one.deliveries, operations + one.operations
        virtual_s += one.virtual_s
        print(
            f"seed {seed}: {one.clients} clients, {one.operations:,} operations, digest {one.digest[:16]}", flush=True
        )
        if one.violation:
            failed += 1
            print(f"seed {seed} FAILED: {one.violation}")
            print(f"again: python -m tests.campaigns.simulate --seeds {seed}{more} --log", flush=True)
    kinds = ", ".join(f"{count:,} {name}" for name, count in sorted(faults.items()))
    print(
        f"{len(given.seeds):,} seeds, {clients:,} clients, {operations:,} operations: {sends:,} messages sent "
        f"({acknowledged:,} acknowledged), {deliveries:,} deliveries, {faults.total():,} faults ({kinds}); "
        f"{virtual_s / 3600:,.1f} virtual hours in {time.monotonic() - begun:,.0f} s; failures {failed}"
    )
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
