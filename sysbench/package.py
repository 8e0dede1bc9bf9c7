"""The installed package: its version, its directories, and a hash of its code."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Literal

VERSION = "0.1.0"

DIRECTORY = Path(__file__).parent


@cache  # called for every cell of a log
def profiles(kind: Literal["hardware", "hosts", "models", "runs"], package: Path = DIRECTORY) -> Path:
    """Return the directory of shipped profiles, in an installed package or at the top of a checkout."""
    installed = package / "profiles" / kind
    return installed if installed.is_dir() else package.parent / "profiles" / kind


@cache
def source_digest() -> str:
    """Return the SHA-256 of the names and contents of this package's Python files."""
    digest = hashlib.sha256()
    for path in sorted(DIRECTORY.rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(DIRECTORY).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()
