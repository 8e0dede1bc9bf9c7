"""`sysbench memory --from FILE`: a snapshot of anyone's, or a log or record of ours."""

from __future__ import annotations

from pathlib import Path

from sysbench.cli import running, saved
from sysbench.specs.run import MemoryOptions


def show(path: Path, options: MemoryOptions) -> None:
    """Show what the file holds."""
    running.show(saved.record(path, "memory"), options)
