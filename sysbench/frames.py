"""The owner of a source file: which package the file of a stack frame belongs to.

Whole components of the path decide: `torchvision` is not `torch`, and a clone in a folder called `sysbench` is not the
package `sysbench`. `owner_here` is for code that runs in this process, and knows where its packages are. `owner` is for
files that a recording names, and which may be on another machine, of any system.
"""

from __future__ import annotations

import os
import re
from functools import cache, lru_cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

from sysbench.package import DIRECTORY

PYTHON: Final = "python"
"""The owner of Python's standard library."""

_INSTALLED: Final = ("site-packages", "dist-packages")
"""Folders in which installers put packages, on every system."""
_STANDARD_LIBRARY: Final = re.compile(r"(python|pypy)\d+\.\d+t?")
"""Folder of Python's standard library, within `lib`. Windows has it in `Lib`."""


class Owner(NamedTuple):
    """The package that a file belongs to, and the file's place in it."""

    package: str | None
    """Name of the package at the top level, or `PYTHON`; None if the file is part of no package: code of the user."""
    path: tuple[str, ...]
    """Components of the file's path within the folder that holds the package: `("torch", "optim", "adam.py")`. The
    whole path for code of the user."""

    @property
    def is_library(self) -> bool:
        """Return whether the file belongs to Python or to a package other than sysbench."""
        return self.package not in (None, "sysbench")

    def is_in(self, package: str, *folders: str) -> bool:
        """Return whether the file is in a package, or in a folder or a file within the package."""
        return self.package == package and self.path[1 : len(folders) + 1] == folders


@lru_cache(maxsize=1 << 14)
def owner_here(filename: str) -> Owner:
    """Return the owner of a file from which this process runs code."""
    parts = _parts(filename)
    return _frozen(filename) or _installed(parts) or _in_known_directory(parts) or Owner(None, parts)


@lru_cache(maxsize=1 << 14)
def owner(filename: str) -> Owner:
    """Return the owner of a file that a recording names.

    Sources of torch, sysbench and Python outside `site-packages` (clones, Windows) are recognized by the name of their
    folder, if the installed package has the same file within it.
    """
    here, parts = owner_here(filename), _parts(filename)
    if here.package is not None:
        return here
    return _in_standard_library(parts) or _same_as_known(parts) or here


def _parts(filename: str) -> tuple[str, ...]:
    return tuple(filter(None, filename.replace("\\", "/").split("/")))


def _frozen(filename: str) -> Owner | None:
    return Owner(PYTHON, (filename,)) if filename.startswith("<frozen ") else None


def _installed(parts: tuple[str, ...]) -> Owner | None:
    inside = _after_last(parts, _INSTALLED)
    return Owner(inside[0].removesuffix(".py"), inside) if inside else None


def _in_standard_library(parts: tuple[str, ...]) -> Owner | None:
    for index, (folder, inside) in enumerate(pairwise(parts[:-1]), start=2):
        if folder in ("lib", "lib64") and _STANDARD_LIBRARY.fullmatch(inside):
            return Owner(PYTHON, parts[index:])
    return None


def _in_known_directory(parts: tuple[str, ...]) -> Owner | None:
    for package, directory in _directories().items():
        outside = _parts(directory)
        if parts[: len(outside)] == outside and len(parts) > len(outside):
            return _owned(package, parts[len(outside) :])
    return None


def _same_as_known(parts: tuple[str, ...]) -> Owner | None:
    for package, directory in _directories().items():
        inside = _after_last(parts, ("Lib",) if package == PYTHON else (package,))
        if inside and os.path.isfile(os.path.join(directory, *inside)):  # noqa: PTH113, PTH118  False for any bad name
            return _owned(package, inside)
    return None


def _owned(package: str, inside: tuple[str, ...]) -> Owner:
    return Owner(package, inside if package == PYTHON else (package, *inside))


def _after_last(parts: tuple[str, ...], folders: tuple[str, ...]) -> tuple[str, ...]:
    """Return the components after the last of these folders; empty if there is none."""
    for index in range(len(parts) - 1, 0, -1):
        if parts[index - 1] in folders:
            return parts[index:]
    return ()


@cache
def _directories() -> dict[str, str]:
    """Return the directories of the packages whose files are recognized outside `site-packages`; imports none."""
    found = find_spec("torch")
    torch = list(found.submodule_search_locations or ()) if found is not None else []
    directories = {"sysbench": str(DIRECTORY), PYTHON: str(Path(os.__file__).parent)}
    return directories | ({"torch": torch[0]} if torch else {})
