"""How a module of sysbench is run in another process: by this very Python, with this very sysbench."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import sysbench


def command(module: str) -> list[str]:
    """Without `-P`, a `sysbench` or a `torch.py` in the current directory would be imported instead."""
    return [sys.executable, "-P", "-m", module]


def environment() -> dict[str, str]:
    """This process's own, in which a checkout that is not installed is importable too."""
    root = Path(sysbench.__file__).parent.parent
    if root.name in ("site-packages", "dist-packages"):
        return dict(os.environ)
    paths = [str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
