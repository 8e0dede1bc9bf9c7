"""Where the files are that come with sysbench: GPUs that are known, experiments that are ready to be run."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

PACKAGE = Path(__file__).parent


def directory(kind: Literal["hardware", "runs"]) -> Path:
    """The directory of these profiles: an installed package holds them itself, in a checkout they lie beside it."""
    installed = PACKAGE / "profiles" / kind
    return installed if installed.is_dir() else PACKAGE.parent / "profiles" / kind
