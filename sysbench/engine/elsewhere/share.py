"""A share of a run's cells, run in another process.

`python -m sysbench.engine.elsewhere.share SHARE DIRECTORY PARENT` runs the share as a complete run with its own worker,
sensors and timeouts. The original run reads the log of the share.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from sysbench import bootstrap
from sysbench.command import cell_of, command_of, spec_of
from sysbench.engine.identity import source_digest
from sysbench.errors import SysbenchError, UsageError
from sysbench.spec.run import RunOptions


class Share(BaseModel):
    """Cells that one process runs one after another."""

    model_config = ConfigDict(frozen=True)

    spec: dict[str, Any]
    cells: tuple[dict[str, Any], ...]
    options: dict[str, Any]
    """The run's options that affect a worker."""
    digest: str
    """Hash of the source code that must run the share."""
    device: str
    """The device as requested."""
    gpus: int
    """Number of GPUs that a cell needs; with `auto`, Ray assigns none if no machine has enough."""
    simulated: bool


def carried_out(share: Share, directory: Path) -> Path:
    """Run a share, and return the path of its log in `directory`.

    Raises UsageError if the code of sysbench differs from that of the original run; errors from the run propagate.
    """
    from sysbench.engine import session

    if source_digest() != share.digest:
        raise UsageError(
            f"{socket.gethostname()} has a different sysbench from this machine: install the same one there"
        )
    command_of(share.spec["kind"]).part("record")  # registers the command's own events
    options = RunOptions(**share.options, out=directory, log_name="share")
    with session.run(spec_of(share.spec), options, cells=[cell_of(axes) for axes in share.cells]) as running:
        for _ in running:
            pass
    return running.log_path


def carried_out_and_sent(share: Share) -> bytes:
    """Run a share in a temporary directory, and return the content of its log."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="sysbench-") as directory:
        return carried_out(share, Path(directory)).read_bytes()


def main() -> None:
    """Run the share in a file, and write its log to a directory; both are given on the command line."""
    share, directory, parent = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    bootstrap.exit_with_parent()
    if os.getppid() != parent:
        return  # the parent ended before this process could ask to be killed with it
    try:
        carried_out(Share.model_validate_json(share.read_bytes()), directory)
    except SysbenchError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
