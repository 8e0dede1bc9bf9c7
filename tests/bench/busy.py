"""Processes that keep cores busy, as other programs on a laptop do."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Keep so many cores busy within the block."""
    context = multiprocessing.get_context("spawn")  # the caller may have threads
    loops = [context.Process(target=_loop, args=(os.getpid(),), daemon=True) for _ in range(count)]
    for loop in loops:
        loop.start()
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.join()


def _loop(parent: int) -> None:
    while os.getppid() == parent:  # which may be killed
        pass
