"""Programs that some options need: whether they are installed, and whether they run."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

from sysbench.commands.doctor.children import Child, NoAnswerError

LIMIT_S = 10.0
"""Allows for slow starts; nsys takes a second from a cold disk."""

_MISSING = {
    "nsys": "nsys not found on PATH",
    "c_compiler": "neither gcc nor clang found on PATH",
    "cxx_compiler": "g++ not found on PATH",
}


class ToolQuestion:
    """Asks one program for its version; starts when it is created."""

    def __init__(self, name: str, path: str | None) -> None:
        self._name, self.path = name, path
        self._child = Child([path, "--version"], LIMIT_S) if path else None

    def answer(self) -> dict[str, str | None]:
        """Fields of a Tool. Never raises."""
        if self._child is None:
            return {"path": self.path, "version": None, "problem": _MISSING[self._name]}
        try:
            said = self._child.answer()
        except NoAnswerError as error:
            return {"path": self.path, "version": None, "problem": str(error)}
        return {"path": self.path, "version": whole_version(said), "problem": None}

    def close(self) -> None:
        """Kill the program if it still runs."""
        if self._child is not None:
            self._child.close()


def questions(environment: Mapping[str, str] = os.environ) -> dict[str, ToolQuestion]:
    """Start asking all programs; by field of a ToolsSection."""
    path = environment.get("PATH")
    return {
        "nsys": ToolQuestion("nsys", shutil.which("nsys", path=path)),
        # As Triton looks for it (triton/runtime/build.py): CC, then gcc, then clang.
        "c_compiler": ToolQuestion("c_compiler", _first((environment.get("CC"), "gcc", "clang"), path)),
        # As Inductor does (torch/_inductor/config.py, cpp.cxx): CXX, or g++, on macOS clang++.
        "cxx_compiler": ToolQuestion(
            "cxx_compiler", _first((environment.get("CXX"), "clang++" if sys.platform == "darwin" else "g++"), path)
        ),
    }


def python_headers() -> str | None:
    """Directory of Python.h; None if it is not installed."""
    directory = Path(sysconfig.get_path("include"))
    return str(directory) if (directory / "Python.h").is_file() else None


def installed(distribution: str) -> str | None:
    """Version of an installed distribution, without importing it."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def whole_version(text: str) -> str | None:
    """The first version number in a text: `2024.6.2.225`."""
    found = re.search(r"\d+(?:\.\d+)+", text)
    return found[0] if found else None


def _first(names: Sequence[str | None], path: str | None) -> str | None:
    """The first program that exists; the first name comes from a variable, and is used even if it does not exist."""
    for name in names:
        if not name:
            continue
        found = shutil.which(name, path=path)
        if found or name is names[0]:
            return found or name
    return None
