"""How worker processes are started: by this Python with this sysbench, plainly or behind a program that wraps them."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Protocol

import sysbench
from sysbench.engine import nsys
from sysbench.meeting import CAPTURE_RANGE


def command(module: str) -> list[str]:
    """Without `-P`, a `sysbench` or a `torch.py` in the current directory would be imported instead."""
    return [sys.executable, "-P", "-m", module]


def environment() -> dict[str, str]:
    """This process's own, in which a checkout that is not installed is importable too."""
    root = Path(sysbench.__file__).parent.parent
    if root.name in ("site-packages", "dist-packages"):
        return dict(os.environ)
    paths = [str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


class Launcher(Protocol):
    """Decides what command line and what environment a worker has.

    The process it describes must become, or start, one worker that inherits this environment; it must end when the
    worker does.
    """

    @property
    def wraps(self) -> bool:
        """Whether another program stands around the worker, which may want it to end in order."""
        ...

    def command(self) -> list[str]:
        """The program and its arguments."""
        ...

    def environment(self) -> dict[str, str]:
        """The whole environment, to which the engine adds where it listens."""
        ...


class PlainLauncher:
    """`python -m sysbench.worker` with this very Python and this very sysbench.

    `prefix` goes in front: `("nsys", "profile", "-t", "cuda,nvtx")`, say.
    """

    def __init__(self, prefix: tuple[str, ...] = ()) -> None:
        self._prefix = prefix

    @property
    def wraps(self) -> bool:
        """Whether there is a prefix."""
        return bool(self._prefix)

    def command(self) -> list[str]:
        """What is in front, and the worker."""
        return [*self._prefix, *command("sysbench.worker")]

    def environment(self) -> dict[str, str]:
        """This process's own, in which a checkout that is not installed is importable too."""
        return environment()


class NsysLauncher(PlainLauncher):
    """The worker under `nsys profile`, which records what happens inside one range and writes when the worker ends."""

    def __init__(self, report: Path) -> None:
        """`report` ends in .nsys-rep; raises UsageError when Nsight Systems is not here."""
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
        """With the range looked up by its text, whether or not that text was registered."""
        return {**super().environment(), "NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"}
