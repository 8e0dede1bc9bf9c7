"""The installed package: its version, its directory, and a hash of its code."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

VERSION = "0.1.0"

DIRECTORY = Path(__file__).parent


@cache
def source_digest() -> str:
    """Return the SHA-256 of the names and contents of this package's Python files."""
    digest = hashlib.sha256()
    for path in sorted(DIRECTORY.rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(DIRECTORY).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()
