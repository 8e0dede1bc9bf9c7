"""Frames of a measured program lie in one chunk of memory: no call maps memory and unmaps it again."""

from __future__ import annotations

import sys

import pytest

from sysbench.interpreter import with_roomy_stack

resource = pytest.importorskip("resource")
CALLS = 1000


def called() -> None:
    """Do nothing, in a frame of 1.6 kB."""


called.__code__ = called.__code__.replace(co_stacksize=200)


def page_faults(depth: int) -> int:
    if depth:
        return page_faults(depth - 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(CALLS):
        called()
    found: int = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    return found


def most_page_faults() -> int:
    return max([page_faults(depth) for depth in range(300)])


@pytest.mark.skipif(sys.platform != "linux", reason="page faults are counted in another way")
def test_no_depth_maps_memory_at_every_call() -> None:
    @with_roomy_stack
    def measured() -> int:
        return most_page_faults()

    assert measured() < CALLS / 10
    # Without room, some depth does, which is why.
    assert most_page_faults() >= CALLS
