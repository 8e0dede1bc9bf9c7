"""What has to be installed: asked before anything is imported that is not part of Python."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[3] / "pyproject.toml"


def missing() -> list[str]:
    """Distributions that sysbench or its tests need and that are not there."""
    needed = [*tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["dependencies"], "pytest"]
    names = [re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0] for requirement in needed]
    return [name for name in names if not _there(name)]


def _there(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return importlib.util.find_spec(name.replace("-", "_")) is not None
    return True
