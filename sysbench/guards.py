"""Assertions on simulated memory, for tests: a training step fits on a GPU, or its peak has not grown.

The step is simulated, so no GPU is needed. The same code and the same torch give the same bytes on every machine.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sysbench import api, units
from sysbench import cells as axes
from sysbench.errors import LogError, SpecError, UnavailableError, UsageError
from sysbench.log import storage
from sysbench.log.storage import ScratchDirectory
from sysbench.spec.axes import parse_share

if TYPE_CHECKING:
    from sysbench.commands.memory.record import MemoryCellRecord

__tracebackhide__ = True  # of all functions here: pytest then shows the line of the test

MAX_CAUSES = 3
"""Number of categories and of allocations that a message names."""

RECORD_IT = "To record it: record=True, or pytest --sysbench-record"

Model = str | Callable[..., object] | None
"""A model as `--model` takes it, or a class or function at the top level of a file; None for a built-in size."""


class MemoryAssertionError(AssertionError):
    """A simulated step takes more memory than it may."""


def assert_fits(model: Model = None, *, on: str = "h100", **step: object) -> api.Run:
    """Assert that a training step fits on a GPU, and return the simulated run.

    `model` is what `--model` takes (`"train.py:build"`), or a class or function at the top level of a file; without it,
    the step is that of a built-in model (`size="xl"`). `on` names GPUs or memory sizes: `"a100-40gb,24GiB"`. `step`
    has fields of MemorySpec: `batch=8, ctx=2048, precision="bf16"`. Several values of a field are all simulated.

    Raises MemoryAssertionError if a step does not fit, and SysbenchError if it cannot be simulated.
    """
    run = _simulated(model, on, step)
    if complaints := [_shortage(cell) for cell in run.cells if cell.does_not_fit]:
        raise MemoryAssertionError("\n".join(complaints))
    return run


def assert_peak(
    model: Model = None, at_most: int | str | os.PathLike[str] = "", *, on: str = "h100", record: bool = False,
    within: float | str = 0.0, **step: object,
) -> api.Run:  # fmt: skip
    """Assert that the allocated peak of a training step does not exceed a limit, and return the simulated run.

    `at_most` is a number of bytes, a size (`"22GiB"`), or a .json file with recorded peaks. With `record=True`, the
    peaks are written to this file instead; peaks of other steps in it are kept. `within` is the share by which a peak
    may exceed the limit: `"1%"` or 0.01. For other arguments see `assert_fits`.

    Raises MemoryAssertionError if a peak is higher or the step does not fit, and SysbenchError if the step cannot be
    simulated, or the file does not have its peak.
    """
    limit_bytes, file = _limit(at_most)
    tolerance_share = _tolerance(within)
    if record and file is None:
        raise UsageError(f"record=True needs a .json file as at_most, not {at_most!r}")
    run = assert_fits(model, on=on, **step)
    peaks = {_name(cell): cell.peak_allocated_bytes for cell in run.cells}
    torch_version = run.record.environment.torch.torch if run.record.environment.torch else "unknown"
    if file is not None and record:
        _write_recorded(file, peaks, torch_version)
        return run
    recorded = _recorded(file) if file is not None else {}
    complaints = []
    for name, peak_bytes in peaks.items():
        most_bytes = limit_bytes if file is None else _recorded_peak(recorded, name, file)
        if peak_bytes > most_bytes * (1 + tolerance_share):
            complaints.append(
                f"{name}: {_excess(peak_bytes, most_bytes, tolerance_share)}"
                f"{_torch_change(recorded, name, torch_version)}"
            )
    if complaints:
        raise MemoryAssertionError("\n".join(complaints))
    return run


# --- the simulation


def _simulated(model: Model, on: str, step: dict[str, object]) -> api.Run:
    from sysbench.commands.memory.spec import MemorySpec

    if "simulate" in step:
        raise UsageError(f"simulate= is called on= here: on={step['simulate']!r}")
    fields: dict[str, Any] = {"mode": "train", **step, **_model_fields(model), "simulate": on}
    try:
        spec = MemorySpec(**fields)
    except SpecError as error:
        raise (SpecError(error.reason, "simulate", "on=") if error.field == "simulate" else error) from None
    with ScratchDirectory() as directory:
        run = api.run(spec, out=Path(directory))
    for cell in run.cells:
        if cell.outcome not in ("ok", "oom"):
            raise UnavailableError(f"{_name(cell)}: {cell.outcome}: {cell.detail or 'no result'}")
    return run


def _model_fields(model: Model) -> dict[str, object]:
    if model is None:
        return {}
    if isinstance(model, str):
        return {"model": model}
    name, file = getattr(model, "__qualname__", ""), inspect.getsourcefile(model) if inspect.isroutine(model) else None
    if inspect.isclass(model):
        module = sys.modules.get(model.__module__)
        file = getattr(module, "__file__", None)
    if not file or not name.isidentifier():
        raise UsageError(
            f"{model!r} is not a class or function at the top level of a file: the simulation imports it in its own "
            "process. Give one, or what --model takes: 'train.py:build'"
        )
    package, _, _ = model.__module__.rpartition(".")
    if not package:
        return {"model": f"{file}:{name}"}
    levels = model.__module__.count(".") + (Path(file).name == "__init__.py")
    return {"model": f"{model.__module__}:{name}", "app_dir": str(Path(file).resolve().parents[levels])}


# --- messages


def _name(cell: MemoryCellRecord) -> str:
    """Return everything that determines the peak: `small, ctx 512, batch 4, fp32, train, …, on h100`."""
    vocab = getattr(cell.cell.shape, "vocab", None)
    words = (*axes.subject([cell]), *([f"vocab {vocab}"] if vocab else ()))
    return f"{', '.join(words)}, on {cell.cell.simulate}"


def _excess(peak_bytes: int, most_bytes: int, tolerance_share: float) -> str:
    """Return by how much a peak exceeds its limit, in bytes where rounded sizes would be equal."""
    peak, most = units.size(peak_bytes), units.size(most_bytes)
    if peak == most:
        peak, most = f"{peak_bytes:,} bytes", f"{most_bytes:,} bytes"
    excess = f"{units.size(peak_bytes - most_bytes)} ({peak_bytes - most_bytes:,} bytes)"
    allowed = f" and the {units.share(tolerance_share)} above it that are allowed" if tolerance_share else ""
    return f"the allocated peak is {peak}, {excess} more than {most}{allowed}"


def _shortage(cell: MemoryCellRecord) -> str:
    """Return by how much a step does not fit, in which phase, and what takes most of the memory."""
    from sysbench.commands.memory.findings import group_description
    from sysbench.log.outcomes import stage_phrase

    verdict, gpu = cell.verdict, cell.gpu
    if verdict is None or gpu is None or verdict.margin_bytes is None:
        return f"{_name(cell)}: {cell.detail or 'does not fit'}"
    categories = sorted(cell.by_category.items(), key=lambda item: -item[1])[:MAX_CAUSES]
    held = ", ".join(f"{category} {units.size(size_bytes)}" for category, size_bytes in categories)
    largest = [f"  {group_description(group)}" for group in cell.largest[:MAX_CAUSES]]
    needed = f"needs {units.size(gpu.memory_bytes - verdict.margin_bytes)} of {units.size(gpu.memory_bytes)}"
    return "\n".join(
        [
            f"{_name(cell)}: does not fit, {needed}: {units.size(-verdict.margin_bytes)} more than there is.",
            f"Memory runs out {stage_phrase(verdict.failed_phase)}, which then holds {held}; the largest allocations:",
            *largest,
        ]
    )


# --- limits and recorded peaks


def _limit(at_most: int | str | os.PathLike[str]) -> tuple[int, Path | None]:
    """Return the limit in bytes, or the file that has it."""
    from sysbench.spec import hardware

    if isinstance(at_most, int) and not isinstance(at_most, bool) and at_most > 0:
        return at_most, None
    if isinstance(at_most, str) and (size_bytes := hardware.memory_size(at_most)):
        return size_bytes, None
    if isinstance(at_most, str | os.PathLike) and Path(at_most).suffix == ".json":
        return 0, Path(at_most)
    raise UsageError(f"at_most={at_most!r} is not a number of bytes, a size such as '22GiB', or a .json file")


def _tolerance(within: float | str) -> float:
    """Return the tolerance as a share; raises UsageError if it is none, or negative."""
    try:
        share = float(str(parse_share(within)))
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise UsageError(f"within={within!r} is not a share from 0 to 1, such as '1%' or 0.01")
    return share


def _recorded(file: Path) -> dict[str, dict[str, object]]:
    """Return the recorded peaks by the name of the step; raises LogError for any other file."""
    try:
        found = json.loads(file.read_bytes())
    except OSError as error:
        raise LogError(f"cannot read {file}: {error.strerror}. {RECORD_IT}") from None
    except ValueError:
        raise LogError(f"{file} is not JSON") from None
    if not isinstance(found, dict) or not all(
        isinstance(peak, dict) and type(peak.get("allocated_peak_bytes")) is int for peak in found.values()
    ):
        raise LogError(f"{file} does not have recorded peaks")
    return found


def _recorded_peak(recorded: dict[str, dict[str, object]], name: str, file: Path) -> int:
    if name not in recorded:
        raise LogError(f"{file} has no peak of {name}. {RECORD_IT}")
    return int(str(recorded[name]["allocated_peak_bytes"]))


def _torch_change(recorded: dict[str, dict[str, object]], name: str, torch_version: str) -> str:
    before = recorded.get(name, {}).get("torch", torch_version)
    return "" if before == torch_version else f", which was recorded with torch {before}; this is {torch_version}"


def _write_recorded(file: Path, peaks: dict[str, int], torch_version: str) -> None:
    kept = _recorded(file) if file.exists() else {}
    new = {name: {"allocated_peak_bytes": peak, "torch": torch_version} for name, peak in peaks.items()}
    content = json.dumps({**kept, **new}, indent=1, sort_keys=True)
    storage.write_atomically(file, content.encode() + b"\n")
