"""Start the engine for a run of cells, alone or with ranks that torchrun or srun has launched; show the progress."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sysbench.bootstrap import rank_from_environment
from sysbench.commands.kinds import command_of
from sysbench.commands.showing import progress_display, say
from sysbench.commands.surroundings import ALONE, RunSurroundings
from sysbench.errors import OutputError, SysbenchError, UsageError
from sysbench.interpreter import gc_paused
from sysbench.package import VERSION
from sysbench.spec.cell import RunSpec
from sysbench.spec.run import RunOptions

if TYPE_CHECKING:
    from sysbench.engine.provisions import Provisions


def launch(
    spec: RunSpec, options: RunOptions, surroundings: RunSurroundings, provisions: Provisions | None
) -> tuple[Path, SysbenchError | None]:
    """Run the cells and show their progress; return the log, and the error that ended the run, if any."""
    from sysbench.engine import session

    _advise_on_shared_memory(spec, options)
    command = command_of(spec.kind)
    with session.run(spec, options, provisions=provisions, surroundings=surroundings) as running:
        first_events = list(islice(running, 2))
        # While the worker imports torch, import what is needed to show its results.
        with gc_paused():
            from concurrent.futures import ThreadPoolExecutor  # noqa: F401

            from sysbench.commands import sheets  # noqa: F401

            command.records()
        with progress_display(command, options, surroundings) as progress:
            failure, path = None, running.log_path
            try:
                for event in chain(first_events, running):
                    progress.show(event)
            except UsageError:
                raise
            except SysbenchError as error:
                failure = error
    if running.log_path != path:
        failure = failure or OutputError(f"{path} was moved or deleted during the run; its copy is {running.log_path}")
    return running.log_path, failure


def _advise_on_shared_memory(spec: RunSpec, options: RunOptions) -> None:
    """Say before several ranks run on GPUs that /dev/shm may be too small: NCCL's own errors do not name it."""
    devices = {cell.device.partition(":")[0] for cell in spec.cells() if cell.workers > 1}
    if options.on or not devices & {"auto", "cuda"} or not Path("/dev/shm").is_dir():
        return
    from shutil import disk_usage

    from sysbench import units
    from sysbench.spec.ranks import SMALL_SHM_BYTES

    total_bytes = disk_usage("/dev/shm").total
    if total_bytes < SMALL_SHM_BYTES:
        from sysbench.engine.supervisor import list_devices

        if list_devices()[0].type == "cuda":
            remedy = "docker run --shm-size 8g, or --ipc host"
            say(f"/dev/shm has {units.size(total_bytes)}: if NCCL fails, that may be why → {remedy}", options)


@contextmanager
def joined_ranks(spec: RunSpec, options: RunOptions) -> Iterator[RunSurroundings]:
    """Yield the run's surroundings if this process is rank 0 of a torchrun or srun launch, or the only process."""
    is_launched = "WORLD_SIZE" in os.environ or "SLURM_STEP_NUM_TASKS" in os.environ
    multi_rank_cells = {cell.key: cell for cell in spec.cells() if cell.workers > 1} if is_launched else {}
    this_rank = None
    if multi_rank_cells:
        from sysbench.engine.rendezvous import other_rank, rank_zero

        this_rank = rank_zero.launched_rank(os.environ)
    if this_rank is None:
        if rank_from_environment(os.environ):
            raise typer.Exit
        yield ALONE
        return
    from sysbench.package import source_digest

    command_of(spec.kind).records()  # importing the record registers the events that ranks send
    hello = rank_zero.Hello(
        rank=max(this_rank.rank, 1),
        ranks=this_rank.ranks,
        host=platform.node(),
        version=VERSION,
        digest=source_digest(),
        spec=hashlib.sha256(spec.model_dump_json().encode()).hexdigest(),
    )
    if this_rank.rank:
        firsts = [cell.reference_time_cell for cell in multi_rank_cells.values()]
        cells = {**multi_rank_cells, **{cell.key: cell for cell in firsts if cell is not None}}
        other_rank.serve(this_rank, hello, cells, options.timeout_s)
        raise typer.Exit
    with rank_zero.connect_ranks(this_rank, hello, options.timeout_s) as others:
        yield RunSurroundings(links=others)
