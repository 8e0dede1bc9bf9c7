"""`sysbench fit`: options → spec → run → show."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from sysbench import units
from sysbench.commands import refusals, running, showing
from sysbench.commands.fit.spec import FitOptions, FitSpec
from sysbench.commands.prediction_checks import refuse_cost_without_price
from sysbench.commands.surroundings import ALONE, RunSurroundings
from sysbench.errors import UsageError
from sysbench.log.records import typed
from sysbench.spec import hardware
from sysbench.spec.command_options import Given, command_options

if TYPE_CHECKING:
    from sysbench.commands.fit.record import FitRecord

DEFAULT_GPU = "h100"
"""The GPU where there is none and none was named: the one that training runs on most often."""


@command_options(FitSpec, FitOptions)
def fit(spec_given: Given, options_given: Given) -> None:
    """Find what makes a training step fit into memory, what makes it faster, and what it costs.

    Every combination shown is simulated, so neither a GPU nor a guess is needed.
    """
    running.execute_command("fit", spec_given, options_given)


def suited(spec: FitSpec, options: FitOptions) -> FitSpec:
    """Return the spec with the GPU of this machine, or DEFAULT_GPU, if no GPU is named; for a table, with all."""
    if spec.table and options.gate:
        raise UsageError("--table answers for other batches and contexts, and --gate for the step as asked: drop one")
    if options.output is not None:
        spec = FitSpec(**{**spec.model_dump(exclude_unset=True), "explore": True})
    if spec.verify:
        return _verifiable(spec)
    if spec.gpus:
        return spec
    if spec.table:
        cards = sorted(hardware.available(), key=lambda card: (card.memory_bytes, card.slug))
        return _with_gpus(spec, tuple(card.slug for card in cards))
    from sysbench.engine.sensors.nvml import present_gpus

    present = [known.slug for name, size_bytes in present_gpus() if (known := hardware.find(name, size_bytes))]
    gpu = present[0] if present else DEFAULT_GPU
    title = hardware.by_name(gpu).title
    where = "the GPU of this machine" if present else "no GPU here"
    showing.say(f"{where}: simulating {title} (--on names others: 4090,a100-40gb, or 24GiB)", options)
    return _with_gpus(spec, (gpu,))


def _verifiable(spec: FitSpec) -> FitSpec:
    """Return the spec, with the GPUs that are here if none is named; raises UsageError if no named one is here."""
    from sysbench.engine.supervisor import list_devices

    cuda = [each for each in list_devices() if each.type == "cuda"]
    here = [known.slug for each in cuda if (known := hardware.find(each.name, each.memory_bytes))]
    if not here:
        what = f"only {cuda[0].name}, which sysbench gpus does not know" if cuda else "no GPU"
        raise UsageError(f"--verify measures on a GPU of --on, but this machine has {what}")
    if spec.gpus and not set(here) & set(spec.gpus):
        raise UsageError(
            f"--verify measures on a GPU of --on, but this machine has {', '.join(dict.fromkeys(here))}, not "
            f"{', '.join(spec.gpus)}"
        )
    return spec if spec.gpus else _with_gpus(spec, tuple(dict.fromkeys(here)))


def _with_gpus(spec: FitSpec, gpus: tuple[str, ...]) -> FitSpec:
    return FitSpec(**{**spec.model_dump(exclude_unset=True), "gpus": gpus})


def refuse_unsupported_files(options: FitOptions) -> None:
    if options.output is not None and options.output.suffix.lower() != ".html":
        raise UsageError(f"--output {options.output} must end in .html: it is a page to explore")
    refusals.refuse_unsupported_figure(options.figure)


def perform(spec: FitSpec, options: FitOptions, surroundings: RunSurroundings = ALONE) -> running.RunResult:
    """Run the search and write the files; raises UsageError for costs without a price."""
    from sysbench.commands.fit.record import FitRecord

    refuse_cost_without_price(options.columns, spec.price, spec.gpus)
    record = typed(running.run_cells(spec, options, surroundings), FitRecord)
    return running.RunResult(record, write_files(record, options))


def gate(record: FitRecord, options: FitOptions) -> Iterator[str]:
    """Yield the GPUs on which the step as asked does not fit, if that is what `--gate` guards against."""
    if options.gate:
        for asked in (cell.asked(gpu) for cell in record.cells for gpu in cell.gpus):
            if not asked.fits:
                missing = units.size(-asked.margin_bytes)
                yield f"as asked, the step does not fit on {asked.gpu}, by {missing}, in {asked.phase}"


def write_files(record: FitRecord, options: FitOptions) -> tuple[Path, ...]:
    """Write the requested files; raises UsageError if the record lacks what the page needs."""
    return showing.report_saved(_written(record, options), options)


def _written(record: FitRecord, options: FitOptions) -> Iterator[showing.Saved]:
    """Write the requested files, and yield each."""
    if options.figure is not None and any(cell.trials for cell in record.cells):
        from sysbench.commands.fit import figures
        from sysbench.render import plots

        is_compared = any(cell.memory for cell in record.cells)
        plots.write(options.figure, lambda: (figures.before_and_after if is_compared else figures.frontier)(record))
        yield showing.Saved(options.figure)
    if options.output is not None:
        from sysbench.commands.fit import page

        page.write(options.output, record)
        yield showing.Saved(options.output)
