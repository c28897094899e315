"""Threads in which listeners work: as many as were at work at a time, each call settled, whatever becomes of it."""

import asyncio
import threading

import pytest

from mqtool.engine.client_runtime.listener_threads import ListenerThreads


@pytest.mark.parametrize("error", [ValueError("no"), StopIteration("no"), SystemExit("no")])
def test_what_a_listener_raises_ends_its_call_and_no_other(error: BaseException) -> None:
    def listener(number: int) -> int:
        if number % 2:
            raise error
        return number

    async def run() -> list[int | BaseException]:
        threads = ListenerThreads(listener, 3, "G")
        results = await asyncio.gather(*(threads.call(number) for number in range(100)), return_exceptions=True)
        threads.stop()
        return results

    results = asyncio.run(run())

    assert results[::2] == list(range(0, 100, 2))
    assert all(isinstance(one, BaseException) and "no" in str(one) for one in results[1::2])


def test_listeners_are_at_work_together_up_to_as_many_as_may_be() -> None:
    together, alone = threading.Barrier(3), threading.Barrier(4)

    def listener(barrier: threading.Barrier) -> str:
        try:
            barrier.wait(0 if barrier is alone else None)
        except threading.BrokenBarrierError:
            return "alone"
        return threading.current_thread().name

    async def run() -> tuple[list[str], str]:
        threads = ListenerThreads(listener, 3, "G")
        names = await asyncio.gather(*(threads.call(together) for _ in range(3)))
        left = await threads.call(alone)
        again = await asyncio.gather(*(threads.call(together) for _ in range(3)))
        threads.stop()
        assert set(again) == set(names)  # no further threads
        return names, left

    names, left = asyncio.run(run())

    assert sorted(names) == ["mqtool G 1", "mqtool G 2", "mqtool G 3"]
    assert left == "alone"


def test_a_call_that_nobody_waits_for_any_more_is_let_go() -> None:
    may_end = threading.Event()

    async def run() -> int:
        threads = ListenerThreads(lambda number: may_end.wait() and number, 1, "G")
        given_up, wanted = threads.call(1), threads.call(2)
        given_up.cancel()
        may_end.set()
        number: int = await wanted
        threads.stop()
        return number

    assert asyncio.run(run()) == 2
