"""Nsight Systems on this machine: workers that it profiles, and the conversion of unfinished reports."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from sysbench.bootstrap import CAPTURE_RANGE
from sysbench.engine.process import Launcher
from sysbench.errors import SysbenchError, UsageError

INSTALL_HINT = (
    "install Nsight Systems (https://developer.nvidia.com/nsight-systems; it is part of the CUDA toolkit, and "
    "Debian and Ubuntu package it as nsight-systems) and put nsys on the PATH, or use --with torch"
)

_IMPORTER = Path("host-linux-x64") / "QdstrmImporter"


def launcher(report: Path) -> Launcher:
    """Return the launcher of a worker under `nsys profile`, which records one NVTX range to `report` (.nsys-rep)."""
    prefix = (
        nsys_path(),
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
    # The name of the capture range is not registered.
    return Launcher(prefix, {"NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"})


def nsys_path() -> str:
    """Return the path of nsys; raises UsageError, with instructions for installing nsys, if it is not found."""
    found = shutil.which("nsys")
    if found is None:
        raise UsageError(f"--with nsys: nsys not found on PATH. To get it, {INSTALL_HINT}")
    return found


def convert_raw_stream(report: Path) -> None:
    """Convert the raw stream to `report` (.nsys-rep) if `nsys profile` left only the stream; raises SysbenchError."""
    stream = report.with_suffix(".qdstrm")
    if report.is_file() or not stream.is_file():
        return
    importer = next((importer for importer in _importers(Path(nsys_path())) if importer.is_file()), None)
    if importer is None:
        raise SysbenchError(f"nsys left {stream.name}, but {_IMPORTER.name}, which turns it into a report, is missing")
    libraries = os.pathsep.join(filter(None, [str(importer.parent), os.environ.get("LD_LIBRARY_PATH")]))
    result = subprocess.run(
        [importer, "-i", stream, "-o", report],
        env={**os.environ, "LD_LIBRARY_PATH": libraries},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if not report.is_file():
        lines = (result.stderr or result.stdout).strip().splitlines()
        raise SysbenchError(
            f"{importer.name} made no report of {stream.name}: {lines[-1] if lines else 'no reason given'}"
        )
    stream.unlink()


def _importers(nsys: Path) -> Iterator[Path]:
    while True:
        yield nsys.parent.parent / _IMPORTER
        if not nsys.is_symlink():
            return
        nsys = nsys.parent / nsys.readlink()
