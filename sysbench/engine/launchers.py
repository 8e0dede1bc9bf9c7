"""How worker processes are started: with this Python and this sysbench, directly or wrapped by another program."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Protocol

import sysbench
from sysbench.engine import nsys
from sysbench.meeting import CAPTURE_RANGE


def command(module: str) -> list[str]:
    """Without `-P`, Python would import a `sysbench` or `torch.py` from the current directory instead."""
    return [sys.executable, "-P", "-m", module]


def environment() -> dict[str, str]:
    """This process's environment, extended so that a checkout that is not installed can be imported."""
    root = Path(sysbench.__file__).parent.parent
    if root.name in ("site-packages", "dist-packages"):
        return dict(os.environ)
    paths = [str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


class Launcher(Protocol):
    """Determines the command line and the environment of a worker.

    The process must become, or start, one worker that inherits this environment, and it must end when the worker ends.
    """

    @property
    def wraps(self) -> bool:
        """Whether another program wraps the worker; it may need the worker to exit cleanly."""
        ...

    def command(self) -> list[str]:
        """Return the program and its arguments."""
        ...

    def environment(self) -> dict[str, str]:
        """Return the whole environment; the engine adds the address at which it listens."""
        ...


class PlainLauncher:
    """`python -m sysbench.worker` with this Python and this sysbench.

    `prefix` precedes the command, for example `("nsys", "profile", "-t", "cuda,nvtx")`.
    """

    def __init__(self, prefix: tuple[str, ...] = ()) -> None:
        self._prefix = prefix

    @property
    def wraps(self) -> bool:
        """Whether there is a prefix."""
        return bool(self._prefix)

    def command(self) -> list[str]:
        """The prefix, followed by the worker's command."""
        return [*self._prefix, *command("sysbench.worker")]

    def environment(self) -> dict[str, str]:
        """This process's environment, extended so that a checkout that is not installed can be imported."""
        return environment()


class NsysLauncher(PlainLauncher):
    """A worker under `nsys profile`, which records inside one range and writes its report when the worker ends."""

    def __init__(self, report: Path) -> None:
        """`report` ends in .nsys-rep; raises UsageError if Nsight Systems is not installed."""
        super().__init__(
            (
                nsys.program(),
                "profile",
                "--trace=cuda,nvtx",
                "--sample=none",
                "--cpuctxsw=none",
                "--capture-range=nvtx",
                f"--nvtx-capture={CAPTURE_RANGE}",
                "--capture-range-end=stop",
                "--force-overwrite=true",
                f"--output={report.with_suffix('')}",
            )
        )

    def environment(self) -> dict[str, str]:
        """Make nsys find the capture range by its text, even if that text is not a registered string."""
        return {**super().environment(), "NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"}
