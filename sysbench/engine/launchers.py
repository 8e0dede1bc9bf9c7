"""Command lines and environments of worker processes, started directly or wrapped by another program."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from sysbench.bootstrap import CAPTURE_RANGE, command, environment
from sysbench.engine import nsys


class Launcher(Protocol):
    """Determines the command line and the environment of a worker.

    The launched process must be the worker, or start one worker that inherits its environment, and must end when the
    worker ends.
    """

    @property
    def wraps(self) -> bool:
        """Whether another program, such as a profiler, wraps the worker; if so, the worker is asked to exit cleanly."""

    def command(self) -> list[str]:
        """Return the program and its arguments."""

    def environment(self) -> dict[str, str]:
        """Return the complete environment; the engine adds the address at which it listens."""


class PlainLauncher:
    """Starts `python -m sysbench.worker` with the Python and the sysbench of this process.

    `prefix` precedes the command, for example `("nsys", "profile", "-t", "cuda,nvtx")`.
    """

    def __init__(self, prefix: tuple[str, ...] = ()) -> None:
        self._prefix = prefix

    @property
    def wraps(self) -> bool:
        """Whether there is a prefix."""
        return bool(self._prefix)

    def command(self) -> list[str]:
        """Return the prefix, followed by the worker's command line."""
        return [*self._prefix, *command("sysbench.worker")]

    def environment(self) -> dict[str, str]:
        """Return this process's environment, extended so that a checkout that is not installed can be imported."""
        return environment()


class NsysLauncher(PlainLauncher):
    """Starts a worker under `nsys profile`, which records one NVTX range and writes its report when the worker ends."""

    def __init__(self, report: Path) -> None:
        """Write to `report`, which ends in .nsys-rep; raises UsageError if Nsight Systems is not installed."""
        super().__init__(
            (
                nsys.nsys_path(),
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
        """Return the environment, with a setting that makes nsys accept an unregistered capture range name."""
        return {**super().environment(), "NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"}
