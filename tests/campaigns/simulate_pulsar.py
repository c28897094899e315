"""Clients of Pulsar and their broker in virtual time, one run from each seed (``tests/simulation/pulsar.py``).

It must hold that

- each message is given to each subscription until it is acknowledged, and then never again, unless a consumer seeks, or
  the broker was killed, or lost its power, within a second after that; what was flushed outlasts a loss of power;
- of Shared and Key_Shared no entry is with two consumers, and of Failover only the active one is given any;
- the messages of a key come to consumers of Key_Shared in order;
- nothing is sent without permits;
- no position, and no offset of a group, passes a message that is not acknowledged;
- the store is sound in the end.

The tests try a few seeds; this is the long form::

    python -m tests.campaigns.simulate_pulsar --seeds 1:1000       seven minutes

It ends with status 1 if a seed fails; the same seed fails in the same way again.
"""

# ruff: noqa: T201  its results go to standard output

import argparse
import sys
import tempfile
import time
from pathlib import Path

from mqtool.engine.repair.findings import Severity
from mqtool.engine.repair.verify.store import verify_store
from mqtool.engine.store.reader import StoreReader
from tests.campaigns.simulate import MEMORY
from tests.simulation.pulsar import BrokenLawError, PulsarWorld


def run(seed: int, steps: int) -> tuple[PulsarWorld, str]:
    """Run one seed in a folder that is gone afterwards; return what was lived, and which law was broken."""
    folder = MEMORY if MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="mqtool-simulation-", dir=folder) as name:
        world = PulsarWorld(seed, Path(name))
        try:
            world.run(steps)
        except BrokenLawError as error:
            return world, str(error)
        findings = [one for one in verify_store(StoreReader(world.root)) if one.severity != Severity.NOTE]
        return world, ", ".join(one.code for one in findings)


def main() -> int:
    """Run the seeds that were asked for and print a line for each that fails, and one for all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="1:1000", help="one, or the first and the last with : between")
    parser.add_argument("--steps", type=int, default=500)
    given = parser.parse_args()
    first, _, last = given.seeds.partition(":")
    seeds = range(int(first), int(last or first) + 1)
    started, failed, messages, deliveries, lives, kills, losses = time.monotonic(), 0, 0, 0, 0, 0, 0
    for seed in seeds:
        world, fault = run(seed, given.steps)
        messages, deliveries = messages + len(world.keys), deliveries + world.deliveries
        lives, kills, losses = lives + world.lives, kills + world.kills, losses + world.losses
        if fault:
            failed += 1
            print(f"seed {seed}: {fault}", flush=True)
    print(
        f"{len(seeds)} seeds, {failed} failed: {messages:,} messages, {deliveries:,} deliveries, "
        f"{lives:,} lives of brokers, {kills:,} ended by a kill, {losses:,} by a loss of power; "
        f"{time.monotonic() - started:.0f} s"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
