"""Reads a trace, whichever profiler wrote it: what a file is, it says itself, whatever it is called."""

from __future__ import annotations

from pathlib import Path

from sysbench.errors import LogError
from sysbench.trace.packed import Recording
from sysbench.trace.readers import kineto, nsys
from sysbench.trace.readers.reading import Progress, in_silence

_BEGINNING_BYTES = 64


def read(path: Path, progress: Progress = in_silence) -> Recording:
    """What a file holds; raises LogError for one that holds no trace."""
    try:
        with path.open("rb") as file:
            beginning = file.read(_BEGINNING_BYTES)
    except FileNotFoundError:
        raise LogError(f"cannot read {path}: no such file") from None
    except OSError as error:
        raise LogError(f"cannot read {path}: {error.strerror}") from error
    if not beginning:
        raise LogError(f"{path} is empty")
    if nsys.is_export(beginning) or path.suffix.lower() in nsys.REPORT_SUFFIXES:
        return nsys.read(path, progress)
    if kineto.is_kineto(beginning):
        return kineto.read(path, progress)
    raise LogError(f"{path} is not a trace: it is neither JSON of torch.profiler nor an export of Nsight Systems")
