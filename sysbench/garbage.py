"""Control of Python's garbage collector, which would disturb measurements and slow down the creation of many objects.

A collection takes as long as a small step, could free tensors at any time, and takes a fifth of the time among millions
of events, which hold no reference cycles.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collection_paused(*, collected: bool = False) -> Iterator[None]:
    """Disable garbage collection inside this context; with `collected`, run one collection first."""
    enabled = gc.isenabled()
    if collected:
        gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
