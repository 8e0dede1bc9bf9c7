"""Leaves a memory snapshot where it was asked for."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sysbench.analysis import snapshot
from sysbench.events import SnapshotWritten


def write(path: Path, content: Mapping[str, Any], cell: str) -> SnapshotWritten:
    """Write the snapshot of a cell, known by its key; raises OutputError."""
    snapshot.write(path, content)
    return SnapshotWritten(at_s=time.time(), cell=cell, path=str(path), size_bytes=path.stat().st_size)
