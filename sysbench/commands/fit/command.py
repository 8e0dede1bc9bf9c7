"""`sysbench fit`: options → spec → run → show."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from sysbench import units
from sysbench.commands import refusals, running, showing
from sysbench.commands.fit.spec import FitOptions, FitSpec
from sysbench.commands.prediction_checks import refuse_cost_without_price
from sysbench.commands.surroundings import ALONE, RunResult, RunSurroundings
from sysbench.errors import UsageError
from sysbench.log import storage
from sysbench.log.records import typed
from sysbench.spec import hardware

if TYPE_CHECKING:
    from sysbench.commands.fit.record import FitRecord

DEFAULT_GPU = "h100"
"""The GPU where there is none and none was named: the one that training runs on most often."""


def suited(spec: FitSpec, options: FitOptions) -> FitSpec:
    """Return the spec with the GPU of this machine, or DEFAULT_GPU, if no GPU is named; for a table, with all."""
    if spec.table and options.gate:
        raise UsageError("--table answers for other batches and contexts, and --gate for the step as asked: drop one")
    if options.gate and not (spec.faster or spec.explain or spec.verify or options.figure):
        spec = _changed(spec, asked_only=True)
    if spec.verify:
        return _verifiable(spec)
    if spec.gpus:
        return spec
    if spec.table:
        cards = sorted(hardware.available_gpus(), key=lambda card: (card.memory_bytes, card.slug))
        return _changed(spec, gpus=tuple(card.slug for card in cards))
    from sysbench.engine.sensors.nvml import present_gpus

    present = [known.slug for name, size_bytes in present_gpus() if (known := hardware.find(name, size_bytes))]
    gpu = present[0] if present else DEFAULT_GPU
    where = "the GPU of this machine" if present else "no GPU here"
    title = hardware.by_name(gpu).title
    showing.say(f"{where}: simulating {title} (--on names others: 4090,a100-40gb, or 24GiB)", options)
    return _changed(spec, gpus=(gpu,))


def _verifiable(spec: FitSpec) -> FitSpec:
    """Return the spec, with the GPUs that are here if none is named; raises UsageError if no named one is here."""
    from sysbench.engine.supervisor import list_devices

    cuda = [device for device in list_devices() if device.type == "cuda"]
    here = dict.fromkeys(known.slug for device in cuda if (known := hardware.find(device.name, device.memory_bytes)))
    if spec.gpus and here.keys() & set(spec.gpus):
        return spec
    if here and not spec.gpus:
        return _changed(spec, gpus=tuple(here))
    what = "no GPU"
    if cuda:
        what = f"{', '.join(here)}, not {', '.join(spec.gpus)}" if here else f"only {cuda[0].name}, which is not known"
    raise UsageError(f"--verify measures on a GPU of --on, but this machine has {what}")


def _changed(spec: FitSpec, **changes: object) -> FitSpec:
    return FitSpec(**{**spec.model_dump(exclude_unset=True), **changes})


def refuse_unwritable(options: FitOptions) -> None:
    refusals.refuse_unsupported_figure(options.figure)
    if options.figure is not None:
        storage.refuse_unwritable(options.figure)


def perform(spec: FitSpec, options: FitOptions, surroundings: RunSurroundings = ALONE) -> RunResult:
    from sysbench.commands.fit.record import FitRecord

    refuse_cost_without_price(options.columns, spec.price, spec.gpus)
    record = typed(running.run_cells(spec, options, surroundings), FitRecord)
    return RunResult(record, write_files(record, options))


def gate(record: FitRecord, options: FitOptions) -> Iterator[str]:
    """Yield the GPUs on which the step as asked may not fit, if that is what `--gate` guards against."""
    from sysbench.commands.fit.findings import undecided

    if options.gate:
        for asked in (cell.asked(gpu) for cell in record.cells for gpu in cell.gpus):
            if asked.is_undecided:
                yield f"as asked, the step may not fit on {asked.gpu}: {undecided(asked)}"
            elif not asked.fits:
                missing = units.size(-asked.margin_bytes)
                yield f"as asked, the step does not fit on {asked.gpu}, by {missing}, in {asked.phase}"


def write_files(record: FitRecord, options: FitOptions) -> tuple[Path, ...]:
    saved = []
    if options.figure is not None and any(cell.trials for cell in record.cells):
        from sysbench.commands.fit import figures
        from sysbench.render import plots

        plots.write(options.figure, lambda: figures.frontier(record))
        saved.append(showing.Saved(options.figure))
    return showing.report_saved(saved, options)
