"""Names and functions that a worker needs before all other imports: this module imports nothing at import time."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

ADDRESS_VARIABLE = "SYSBENCH_ADDRESS"
"""Environment variable with the path of the engine's socket. Launchers like nsys and torchrun close inherited files."""

KEY_VARIABLE = "SYSBENCH_AUTHKEY"
"""Environment variable with the key, in hexadecimal, by which worker and engine authenticate each other."""

CAPTURE_RANGE = "sysbench"
"""The NVTX range inside which Nsight Systems records a worker."""


def command(module: str) -> list[str]:
    """Return the command line that runs a module of this sysbench with this Python."""
    import sys

    # Without `-P`, Python would prefer a `sysbench` or `torch.py` in the current directory.
    return [sys.executable, "-P", "-m", module]


def environment() -> dict[str, str]:
    """Return this process's environment, extended so that a checkout that is not installed can be imported."""
    import os
    from pathlib import Path

    root = Path(__file__).parent.parent
    if root.name in ("site-packages", "dist-packages"):
        return dict(os.environ)
    paths = [str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def exit_with_parent() -> None:
    """Make the Linux kernel kill this process when its parent ends; elsewhere, its next message will fail."""
    import ctypes
    import signal
    import sys

    if sys.platform == "linux":
        pr_set_pdeathsig = 1  # linux/prctl.h
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def rank_from_environment(environment: Mapping[str, str]) -> int:
    """Return the rank of this process under torchrun or srun; 0, which runs the engine, if neither started it."""
    rank = environment.get("RANK") or environment.get("SLURM_PROCID") or ""
    return int(rank) if rank.isdecimal() and len(rank) < 10 else 0
