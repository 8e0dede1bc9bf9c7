"""Identification of the running code."""

from __future__ import annotations

import hashlib
from functools import cache

from sysbench.package import DIRECTORY


@cache
def source_digest() -> str:
    """Return the SHA-256 of the names and contents of this package's Python files."""
    root = DIRECTORY
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()
