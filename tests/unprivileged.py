"""Takes from root what no other user has: access to files whose permissions deny it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

_VERSION_3 = 0x20080522
"""Version of the structures below (capget(2))."""
_DAC_OVERRIDE, _DAC_READ_SEARCH = 1, 2
"""Numbers of the capabilities that ignore permissions (capabilities(7))."""


@contextmanager
def permissions_obeyed() -> Iterator[None]:
    """Within the block, this thread is denied what the permissions of a file deny, even if it is root."""
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    # Two times (effective, permitted, inheritable), for the lower and the upper 32 capabilities.
    held, reduced = (ctypes.c_uint32 * 6)(), (ctypes.c_uint32 * 6)()
    if libc.capget(header, held):
        raise OSError(ctypes.get_errno(), "capget")
    reduced[:] = held[:]
    reduced[0] &= ~(1 << _DAC_OVERRIDE | 1 << _DAC_READ_SEARCH)
    if libc.capset(header, reduced):
        raise OSError(ctypes.get_errno(), "capset")
    try:
        yield
    finally:
        libc.capset(header, held)
