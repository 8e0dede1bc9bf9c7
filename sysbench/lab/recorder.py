"""Profilers with a common interface: they record while steps run, and write the trace afterwards.

What runs as `first` is not recorded: it pays for the start of the profiler, which makes a first step slow.
"""

from __future__ import annotations

import errno
import gzip
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import torch

from sysbench.bootstrap import CAPTURE_RANGE
from sysbench.lab import ranges
from sysbench.log.storage import cannot_write

_FULL_DISK_BYTES: Final = 1 << 20
"""If writing a trace fails and the disk has less free space than this, the disk is assumed to be full."""


class TorchRecorder:
    """torch.profiler: operators on the host and, on supported devices, the kernels they launch."""

    ranges: ranges.Profiler = "record_function"

    def __init__(self, device: torch.device, *, shapes: bool) -> None:
        activities = [torch.profiler.ProfilerActivity.CPU]
        if device.type == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        # No stacks and no memory: they cause most of a profiler's overhead, and no result here uses them.
        self._profile: Any = torch.profiler.profile(activities=activities, record_shapes=shapes)

    @contextmanager
    def recording(self, first: Callable[[], object] = lambda: None) -> Iterator[None]:
        """Record everything inside this context; CUPTI's buffers are read afterwards."""
        self._profile.prepare_trace()
        first()
        self._profile.start_trace()
        try:
            yield
        finally:
            self._profile.stop_trace()

    def write(self, path: Path) -> None:
        """Write the trace as Kineto's JSON, compressed if the name ends in .gz."""
        try:
            self._write(path)
        except OSError as error:
            path.unlink(missing_ok=True)
            raise cannot_write(path, error) from error

    def _write(self, path: Path) -> None:
        # Kineto writes to a file with a longer name first, and `path` may be as long as the file system allows.
        with tempfile.TemporaryDirectory(prefix="sysbench-", dir=path.parent) as directory:
            plain = Path(directory) / "trace.json"
            self._export(plain)
            if path.suffix != ".gz":
                plain.replace(path)
                return
            # torch compresses at the highest level, which takes ten times as long to save a tenth of the size.
            with plain.open("rb") as source, gzip.open(path, "wb", compresslevel=4) as target:
                shutil.copyfileobj(source, target, 1 << 20)

    def _export(self, path: Path) -> None:
        """Write the JSON, or raise OSError, which Kineto does not do."""
        self._profile.export_chrome_trace(str(path))
        if not path.is_file():
            full = shutil.disk_usage(path.parent).free < _FULL_DISK_BYTES
            why = os.strerror(errno.ENOSPC) if full else "torch.profiler could not finish the recording"
            raise OSError(errno.ENOSPC if full else errno.EIO, why)


class NsysRecorder:
    """Nsight Systems, which wraps this process and records while the NVTX range `CAPTURE_RANGE` is open."""

    ranges: ranges.Profiler = "nvtx"

    def __init__(self, device: torch.device, *, shapes: bool) -> None:
        self._device = device
        self._shapes = shapes

    @contextmanager
    def recording(self, first: Callable[[], object] = lambda: None) -> Iterator[None]:
        """Record everything inside this context, and `first`, but outside all steps.

        On CUDA, operators also become ranges, with sequence numbers that link backward operators to forward operators.
        """
        import nvtx

        with ExitStack() as open_ranges:
            open_ranges.enter_context(nvtx.annotate(CAPTURE_RANGE))
            first()
            if self._device.type == "cuda":  # without CUDA, torch emits no ranges for operators
                open_ranges.enter_context(torch.autograd.profiler.emit_nvtx(record_shapes=self._shapes))
            yield

    def write(self, path: Path) -> None:
        """Do nothing: Nsight Systems writes its trace when this process ends."""


Recorder = TorchRecorder | NsysRecorder


def recorder_for(profiler: str, device: torch.device, *, shapes: bool) -> Recorder:
    """Return the profiler with this name: `torch` or `nsys`."""
    return (NsysRecorder if profiler == "nsys" else TorchRecorder)(device, shapes=shapes)
