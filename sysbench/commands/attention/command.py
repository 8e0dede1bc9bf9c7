"""`sysbench attention`: options → spec → run → show, and draw a figure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sysbench.commands import refusals, running, showing
from sysbench.commands.attention.spec import AttentionOptions, AttentionSpec
from sysbench.commands.prediction_checks import refuse_present_gpus
from sysbench.commands.surroundings import ALONE, RunResult, RunSurroundings
from sysbench.commands.without_gpu import DEFAULT_GPU, is_without_gpu, say_simulating
from sysbench.spec.attention import IMPLEMENTATIONS

if TYPE_CHECKING:
    from sysbench.commands.attention.record import AttentionRecord


def suited(spec: AttentionSpec, options: AttentionOptions) -> AttentionSpec:
    """Return the spec; without a GPU, and unless a device was named, --sweep simulates DEFAULT_GPU.

    Half of the sweep does not fit into a host's memory, or takes hours there. Functions of the user are measured.
    """
    own = [name for name in spec.impl if name not in IMPLEMENTATIONS]
    if not spec.sweep or spec.simulate or spec.device != ("auto",) or spec.threads or own or not is_without_gpu():
        return spec
    say_simulating(options)
    return AttentionSpec(**{**spec.model_dump(exclude_unset=True), "simulate": DEFAULT_GPU})


def perform(spec: AttentionSpec, options: AttentionOptions, surroundings: RunSurroundings = ALONE) -> RunResult:
    refuse_present_gpus(spec.simulate, force=options.force)
    return running.perform(spec, options, surroundings)


def refuse_unwritable(options: AttentionOptions) -> None:
    if options.figure is not None:
        from sysbench.log import storage

        refusals.refuse_unsupported_figure(options.figure)
        storage.refuse_unwritable(options.figure)


def draw(record: AttentionRecord, options: AttentionOptions) -> tuple[Path, ...]:
    if options.figure is None:
        return ()
    from sysbench.commands.attention import figures

    return showing.report_saved(map(showing.Saved, figures.write(options.figure, record)), options)
