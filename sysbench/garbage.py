"""Python's garbage collector, kept out of what is measured, of what watches tensors go, and of what makes many objects.

A collection takes as long as a small step, could free tensors at any time, and among millions of events, which hold no
cycles, takes a fifth of the time.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused(*, collected: bool = False) -> Iterator[None]:
    """Python collects no garbage before the end; with `collected`, it does so once now."""
    enabled = gc.isenabled()
    if collected:
        gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
