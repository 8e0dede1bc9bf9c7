"""How many threads a run takes: all on a quiet machine, fewer where they would wait for each other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import count

import pytest
import torch

from sysbench.lab.devices import using_threads
from sysbench.log.events import ThreadsProbed
from sysbench.worker.threads import BUDGET_S, Instruments, choose, probe


class Machine:
    """A machine that interrupts threads; its clock advances by what the work takes."""

    def __init__(self, seconds: Callable[[int], float], preemptions_per_s: float = 0.0):
        self.now_s, self.tried = 0.0, []
        self._seconds = seconds
        self.instruments = Instruments(
            self.work,
            lambda: round(preemptions_per_s * self.now_s),
            lambda: self.now_s,
        )

    def work(self, threads: int) -> float:
        self.tried: list[int] = [*self.tried, threads]
        self.now_s += self._seconds(threads)
        return self._seconds(threads)


def shared(threads: int) -> float:
    """Work of 32 ms on a machine that has 4 cores to spare: with more threads than that, each wait takes long."""
    return 0.032 / threads if threads <= 4 else 0.032 / threads + 0.05


def test_a_quiet_machine_takes_all_threads_and_says_so_at_once() -> None:
    machine = Machine(lambda threads: 0.064 / threads)
    chosen = choose(16, machine.instruments)
    assert (chosen.threads, chosen.default, chosen.is_reduced) == (16, 16, False)
    assert set(machine.tried) == {16, 8}
    assert machine.now_s < BUDGET_S / 3


def test_a_quiet_machine_takes_all_threads_even_for_work_that_is_too_small_for_them() -> None:
    assert choose(16, Machine(lambda threads: 0.001 * threads).instruments).threads == 16


def test_threads_that_wait_for_each_other_are_halved_until_they_do_not() -> None:
    machine = Machine(shared, preemptions_per_s=1000)
    chosen = choose(16, machine.instruments)
    assert (chosen.threads, chosen.is_reduced) == (4, True)
    assert [threads for threads, _ in chosen.mean_s] == [16, 8, 4, 2]
    assert [mean_s for _, mean_s in chosen.mean_s] == pytest.approx([shared(each) for each in (16, 8, 4, 2)])


def test_scattered_times_alone_show_that_something_disturbs_the_threads() -> None:
    on_all = count()
    machine = Machine(lambda threads: (0.2 if next(on_all) % 4 < 2 else 0.002) if threads == 2 else 0.003)
    assert choose(2, machine.instruments).threads == 1


def test_a_small_difference_in_a_disturbed_moment_does_not_decide() -> None:
    for fewer_s, threads in ((0.0037, 2), (0.0033, 2), (0.0030, 1)):
        machine = Machine(lambda threads, fewer_s=fewer_s: 0.0040 if threads == 2 else fewer_s, 1000)
        assert choose(2, machine.instruments).threads == threads


def test_one_thread_leaves_nothing_to_try() -> None:
    machine = Machine(shared, 1000)
    assert choose(1, machine.instruments).threads == 1
    assert machine.tried == []


@pytest.fixture
def two_threads() -> Iterator[None]:
    with using_threads(2):
        yield


@pytest.mark.usefixtures("two_threads")
def test_the_probe_of_this_machine_says_what_it_measured_and_changes_nothing() -> None:
    began_s = time.perf_counter()
    found = probe()
    assert isinstance(found, ThreadsProbed)
    assert (found.default, torch.get_num_threads()) == (2, 2)
    assert [threads for threads, _ in found.mean_s] == [2, 1]
    assert all(0 < mean_s < time.perf_counter() - began_s for _, mean_s in found.mean_s)
    assert found.threads in (1, 2)
