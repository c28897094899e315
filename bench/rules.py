"""The rules of a broker in this checkout against those of another: ``python -m bench.rules OTHER``.

Each checkout has a process of its own, without sockets (``rules_load.py``); they work in turns, and of each pair of
turns a ratio is taken. What counts is processor time. The machine is in them too: beside the ratios stand those of
this checkout against itself, which say what a ratio is worth.
"""

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click

_HERE = Path(__file__).parents[1]
_LOADS = {"send": 1600, "batch": 160, "pull-1": 1600, "pull-32": 400, "pull-8-queues": 1600}
"""What is done in a turn, and how often: some hundredths of a second."""


@click.command()
@click.argument("other", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--turns", default=41, help="How often each does each thing.")
@click.option("--only", type=click.Choice([*_LOADS]), help="One of the loads.")
def main(other: Path, turns: int, only: str | None) -> None:
    """Print what requests cost in this checkout and in OTHER."""
    with ExitStack() as stack:
        ours, theirs, again = (stack.enter_context(_broker(checkout)) for checkout in (_HERE, other, _HERE))
        print(f"{'':14}  {'here':>9}  {'other':>9}  ratio (half of all within)     here to here")
        for kind in [only] if only else _LOADS:
            spent: list[list[float]] = [[], [], []]
            for turn in range(turns):
                for number in (0, 1, 2) if turn % 2 else (2, 1, 0):
                    spent[number].append(_ask((ours, theirs, again)[number], kind))
            here, there, _ = (statistics.median(one) / 1000 for one in spent)
            ratios = "  ".join(_ratio(spent[0], others) for others in spent[1:])
            print(f"{kind:14}  {here:6.1f} µs  {there:6.1f} µs  {ratios}")


@contextmanager
def _broker(checkout: Path) -> "Iterator[subprocess.Popen[str]]":
    environment = {**os.environ, "PYTHONPATH": str(checkout.resolve())}
    words = [sys.executable, "-P", str(_HERE / "bench" / "rules_load.py")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdin
        assert process.stdout
        if process.stdout.readline() != "ready\n":
            raise click.ClickException(f"the broker of {checkout} does not start")
        yield process
        process.stdin.close()


def _ask(process: "subprocess.Popen[str]", kind: str) -> float:
    assert process.stdin
    assert process.stdout
    print(kind, _LOADS[kind], file=process.stdin, flush=True)
    return float(process.stdout.readline())


def _ratio(ours: list[float], theirs: list[float]) -> str:
    ratios = [one / other for one, other in zip(ours, theirs, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{middle:5.3f} ({low:.3f} to {high:.3f})"


if __name__ == "__main__":
    main()
