"""The version of PyTorch that simulations follow: what a step allocates changes from one minor version to the next."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version

_NEWEST_KNOWN = (2, 15)


@cache
def installed_torch() -> tuple[int, int]:
    """Return (major, minor) of the installed PyTorch, without importing it."""
    major, minor = version("torch").split(".")[:2]
    return int(major), int(minor)


def followed_torch() -> str:
    """Return the version of PyTorch that simulations follow: the installed one, or the newest known one."""
    return ".".join(map(str, min(installed_torch(), _NEWEST_KNOWN)))
