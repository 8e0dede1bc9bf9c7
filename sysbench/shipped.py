"""Where the files are that come with sysbench: GPUs that are known, experiments that are ready to be run."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

_PACKAGE = Path(__file__).parent


def directory(kind: Literal["hardware", "runs"], package: Path = _PACKAGE) -> Path:
    """The directory of these profiles: an installed package holds them itself, in a checkout they lie beside it."""
    installed = package / "profiles" / kind
    return installed if installed.is_dir() else package.parent / "profiles" / kind
