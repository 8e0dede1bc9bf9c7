"""Pictures of a run for a report: by the command that the run is of, and across runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from sysbench.command import Kind
from sysbench.commands.accum import figures as accum_figure
from sysbench.commands.accum.record import AccumRecord
from sysbench.commands.attention import pictures as attention_pictures
from sysbench.commands.attention.record import AttentionRecord
from sysbench.commands.memory import figures as memory_bars
from sysbench.commands.memory.record import MemoryRecord
from sysbench.commands.profile import figures as profile_figures
from sysbench.commands.profile.record import ProfileRecord
from sysbench.commands.report.document import Picture, ReportedRun, origin_of
from sysbench.commands.time import figures as time_figures
from sysbench.commands.time.record import TimeRecord


def of_time(run: ReportedRun[TimeRecord]) -> Iterator[Picture]:
    """A step by its phases, times and the share of the peak over the context, and every sample."""
    for drawn in time_figures.figures(run.record.cells):
        yield Picture(drawn.name, drawn.caption, drawn.draw)


def of_profile(run: ReportedRun[ProfileRecord]) -> Iterator[Picture]:
    """The share of each class of kernels, and attention by time and by FLOPs."""
    for drawn in profile_figures.figures(run.record.cells):
        yield Picture(drawn.name, drawn.caption, drawn.draw)


def of_memory(run: ReportedRun[MemoryRecord]) -> Iterator[Picture]:
    """Peaks by category over the context, and phase by phase."""
    for drawn in memory_bars.figures(run.record.cells):
        yield Picture(drawn.name, drawn.caption, drawn.draw, origin_of(drawn.cells))


def of_attention(run: ReportedRun[AttentionRecord]) -> Iterator[Picture]:
    """Curves over the sequence length and heat maps, for each setting of the sweep."""
    for figure in attention_pictures.figures(run.record):
        yield Picture(figure.name, figure.caption, figure.draw, origin_of(figure.cells))


def of_accum(run: ReportedRun[AccumRecord]) -> Iterator[Picture]:
    """A picture for each experiment that has something to show."""
    for cell in run.record.cells:
        if cell.outcome == "ok":
            yield Picture(run.label(cell), accum_figure.caption(cell), partial(accum_figure.draw, cell))


PICTURES: Mapping[Kind, Callable[[ReportedRun[Any]], Iterable[Picture]]] = {
    "time": of_time,
    "profile": of_profile,
    "memory": of_memory,
    "attention": of_attention,
    "accum": of_accum,
}
"""What is drawn of one run, by its command.

The names of pictures need to be unique within their run only: the report puts the run's own in front.
"""

ACROSS: tuple[Callable[[Sequence[ReportedRun[Any]]], Iterable[Picture]], ...] = ()
"""What is drawn of several runs together; each is given all runs of the report."""
