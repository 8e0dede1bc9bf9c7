"""Profilers, as the worker drives them: what is on while steps are recorded, and what is left afterwards."""

from __future__ import annotations

import errno
import gzip
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import torch

from sysbench.errors import OutputError
from sysbench.lab import ranges
from sysbench.meeting import CAPTURE_RANGE

_NEXT_TO_NOTHING_BYTES: Final = 1 << 20
"""A disk with less room than this was too full for a trace."""


class Recorder(Protocol):
    """One profiler."""

    ranges: ranges.Profiler
    """What names in the workload become for it."""

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record what happens inside."""
        yield

    def write(self, path: Path) -> None:
        """Leave the trace at `path`, where this profiler does that itself; raises OutputError."""


class TorchRecorder:
    """torch.profiler: operators on the host and, on a device that it knows, what they launch there."""

    ranges: ranges.Profiler = "record_function"

    def __init__(self, device: torch.device, *, shapes: bool) -> None:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if device.type == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        # Stacks and memory stay out: they cost most of what a profile costs, and nothing here is made of them.
        self._profile: Any = torch.profiler.profile(activities=activities, record_shapes=shapes)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record what happens inside. CUPTI is set up before, and its buffers are read after."""
        self._profile.prepare_trace()
        self._profile.start_trace()
        try:
            yield
        finally:
            self._profile.stop_trace()

    def write(self, path: Path) -> None:
        """Write Kineto's JSON, compressed if the name ends in .gz. Raises OutputError, and leaves nothing then."""
        try:
            self._write(path)
        except OSError as error:
            path.unlink(missing_ok=True)
            raise OutputError(f"cannot write {path}: {(error.strerror or str(error)).lower()}") from error

    def _write(self, path: Path) -> None:
        if path.suffix != ".gz":
            self._export(path)
            return
        # What torch compresses it compresses at the highest level, which takes ten times as long for a tenth less.
        with tempfile.TemporaryDirectory(prefix="sysbench-", dir=path.parent) as directory:
            plain = Path(directory) / "trace.json"
            self._export(plain)
            with plain.open("rb") as source, gzip.open(path, "wb", compresslevel=4) as target:
                shutil.copyfileobj(source, target, 1 << 20)

    def _export(self, path: Path) -> None:
        """Write the JSON. Kineto raises nothing when it cannot: it leaves what it could write under another name."""
        self._profile.export_chrome_trace(str(path))
        if not path.is_file():
            full = shutil.disk_usage(path.parent).free < _NEXT_TO_NOTHING_BYTES
            path.with_name(f"{path.name}.tmp").unlink(missing_ok=True)
            why = os.strerror(errno.ENOSPC) if full else "torch.profiler could not finish it"
            raise OSError(errno.ENOSPC if full else errno.EIO, why)


class NsysRecorder:
    """Nsight Systems, which is around this process already: it is told when to begin and when to stop."""

    ranges: ranges.Profiler = "nvtx"

    def __init__(self, device: torch.device, *, shapes: bool) -> None:
        self._device = device
        self._shapes = shapes

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record what happens inside. Operators are ranges then too, with the numbers that tie backward to forward."""
        import nvtx

        with ExitStack() as open_ranges:
            open_ranges.enter_context(nvtx.annotate(CAPTURE_RANGE))
            if self._device.type == "cuda":  # a torch without CUDA has no ranges for its operators
                open_ranges.enter_context(torch.autograd.profiler.emit_nvtx(record_shapes=self._shapes))
            yield

    def write(self, path: Path) -> None:
        """Leave that to Nsight Systems, which writes when this process is over."""


def recorder_for(profiler: str, device: torch.device, *, shapes: bool) -> Recorder:
    """The profiler of this name: `torch` or `nsys`."""
    kinds: dict[str, type[TorchRecorder] | type[NsysRecorder]] = {"torch": TorchRecorder, "nsys": NsysRecorder}
    return kinds[profiler](device, shapes=shapes)
