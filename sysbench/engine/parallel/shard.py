"""A shard of a run's cells, run in another process."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import BaseModel, ConfigDict

from sysbench.command import cell_of, command_of, spec_of
from sysbench.engine.identity import source_digest
from sysbench.engine.surroundings import Surroundings
from sysbench.errors import UsageError
from sysbench.spec.run import RunOptions

RunCells = Callable[..., Any]
"""`sysbench.engine.session.run`, handed over because a session in turn hands its cells to shards."""


class Shard(BaseModel):
    """Cells that one process runs one after another."""

    model_config = ConfigDict(frozen=True)

    spec: dict[str, Any]
    cells: tuple[dict[str, Any], ...]
    options: dict[str, Any]
    digest: str
    """Hash of the source code that must run the shard."""
    device: str
    gpus: int
    """Number of GPUs that a cell needs; with `auto`, Ray assigns none if no machine has enough."""
    simulated: bool


def run_shard(shard: Shard, directory: Path, run: RunCells) -> Path:
    """Run a shard with `run`, and return the path of its log in `directory`."""
    if source_digest() != shard.digest:
        raise UsageError(
            f"{socket.gethostname()} has a different sysbench from this machine: install the same one there"
        )
    command_of(shard.spec["kind"]).part("record")  # registers the command's own events
    options = RunOptions(**shard.options, out=directory)
    cells = [cell_of(axes) for axes in shard.cells]
    with run(spec_of(shard.spec), options, cells=cells, surroundings=Surroundings(log_name="shard")) as running:
        for _ in running:
            pass
    log_path: Path = running.log_path
    return log_path


def run_shard_remotely(shard: Shard, run: RunCells) -> bytes:
    """Run a shard with `run` in a temporary directory, and return the content of its log."""

    with TemporaryDirectory(prefix="sysbench-") as directory:
        return run_shard(shard, Path(directory), run).read_bytes()
