"""Reading and summarising traces of any supported profiler. numpy and the parsers are imported on first use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from sysbench.errors import LogError, SysbenchError
from sysbench.log.storage import cannot_read
from sysbench.spec.validation import first_error
from sysbench.trace.readers.reading import Progress, no_progress
from sysbench.trace.summary import ProfileSummary

if TYPE_CHECKING:
    from sysbench.spec.hardware import Hardware
    from sysbench.spec.model import ModelCell
    from sysbench.trace.recording import Recording

_BEGINNING_BYTES = 64


def read(path: Path, progress: Progress = no_progress) -> Recording:
    """Read a trace; raises LogError if the file cannot be read as a trace.

    The format is detected from the content, except that reports of Nsight Systems are recognised by their suffix.
    """
    from sysbench.trace.readers import kineto, nsys

    def report(so_far: str) -> None:
        progress(f"reading {path.name}: {so_far}")

    try:
        with path.open("rb") as file:
            beginning = file.read(_BEGINNING_BYTES)
    except OSError as error:
        raise cannot_read(path, error) from error
    if not beginning:
        raise LogError(f"{path} is empty")
    if beginning.startswith(nsys.SQLITE) or path.suffix.lower() in nsys.REPORT_SUFFIXES:
        return nsys.read(path, report)
    if kineto.is_kineto(beginning):
        return kineto.read(path, report)
    raise LogError(f"{path} is not a trace: it is neither torch.profiler JSON nor an Nsight Systems export")


def summary_of(
    recording: Recording,
    cell: ModelCell | None = None,
    progress: Progress = no_progress,
    device: Hardware | None = None,
) -> ProfileSummary:
    """Summarise a recording; raises SysbenchError if it is empty. The recording cannot be used afterwards."""
    from sysbench.trace.summarise import summarise

    try:
        summary = summarise(
            recording,
            cell,
            device=device,
            progress=lambda so_far: progress(f"attributing {recording.title}: {so_far}"),
        )
    except ValidationError as error:
        raise LogError(f"{recording.title} is inconsistent: {first_error(error)}") from None
    if not summary.names:
        why = f" ({'; '.join(summary.remarks)})" if summary.remarks else ""
        raise SysbenchError(f"the profile is empty: {recording.title} has no kernels and no operators{why}")
    return summary
