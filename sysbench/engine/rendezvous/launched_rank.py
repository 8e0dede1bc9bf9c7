"""The rank of this process and the address of rank 0, from the environment variables of torchrun or srun."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from sysbench.errors import UsageError

FIRST_PORT = 29_500

HIGHEST_PORT = 65_535


@dataclass(frozen=True)
class LaunchedRank:
    """One of several processes that a launcher has started together."""

    rank: int
    ranks: int
    local_rank: int
    """Number of the rank on its node, which is the index of its GPU."""
    address: str
    port: int
    key: bytes
    on_one_node: bool = False


def has_launcher_variables(environment: Mapping[str, str]) -> bool:
    """Whether variables of torchrun or of an srun step are set."""
    return "WORLD_SIZE" in environment or "SLURM_STEP_NUM_TASKS" in environment


def launched_rank(environment: Mapping[str, str]) -> LaunchedRank | None:
    """Return the rank of this process and the address of rank 0; None if the process was started alone.

    torchrun sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT; an srun step sets SLURM_ variables. The
    engine listens on SYSBENCH_PORT, by default MASTER_PORT + 1, because torchrun's own rendezvous uses MASTER_PORT.
    Raises UsageError if a variable is invalid.
    """
    if "RANK" in environment:
        rank, ranks, local_rank = "RANK", "WORLD_SIZE", "LOCAL_RANK"
    else:
        rank, ranks, local_rank = "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"
    if rank not in environment or ranks not in environment:
        return None
    count = _number(environment, ranks, 1, 1)
    if count == 1:
        return None
    address = environment.get("MASTER_ADDR") or _first_host(environment)
    if not address:
        raise UsageError(f"{rank} and {ranks} indicate several ranks; set MASTER_ADDR to the address of rank 0")
    port = _number(environment, "MASTER_PORT", FIRST_PORT, 1, HIGHEST_PORT) + 1
    return LaunchedRank(
        rank=_number(environment, rank, 0, 0, count - 1),
        ranks=count,
        local_rank=_number(environment, local_rank, 0, 0),
        address=address,
        port=_number(environment, "SYSBENCH_PORT", min(port, HIGHEST_PORT), 1, HIGHEST_PORT),
        key=environment.get("SYSBENCH_KEY", "").encode(),
        on_one_node=environment.get("LOCAL_WORLD_SIZE") == str(count) or environment.get("SLURM_STEP_NUM_NODES") == "1",
    )


def _number(environment: Mapping[str, str], name: str, default: int, least: int, most: int | None = None) -> int:
    text = environment.get(name) or str(default)
    if not text.isdecimal() or int(text) < least or (most is not None and int(text) > most):
        allowed = f"{least} to {most}" if most is not None else f"{least} or more"
        raise UsageError(f"{name}={text} is not a number that a launcher sets: it must be {allowed}")
    return int(text)


def _first_host(environment: Mapping[str, str]) -> str:
    nodes = environment.get("SLURM_STEP_NODELIST")
    if not nodes:
        return ""
    try:
        told = subprocess.run(["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return next(iter(told.stdout.split()), "")
