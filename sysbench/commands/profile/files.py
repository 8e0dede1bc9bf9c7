"""Files of `sysbench profile`: traces of a cell's ranks, slices of traces, and flame graphs."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pydantic import ValidationError

from sysbench import units
from sysbench.commands.profile import flame
from sysbench.commands.profile.record import ProfileRead, ProfileRecord, RanksRead, TraceWritten
from sysbench.commands.profile.spec import ProfileCell, ProfileOptions, Profiler, ProfileSpec
from sysbench.commands.showing import Saved
from sysbench.engine import nsys
from sysbench.engine.plan import PlacedCell, refuse_impossible
from sysbench.engine.provisions import Provisions
from sysbench.errors import LogError, SysbenchError, UsageError
from sysbench.log import storage
from sysbench.log.events import Event, OfRank, StageEntered
from sysbench.log.file_names import labels_of, paths_of, paths_of_ranks
from sysbench.log.storage import ScratchDirectory
from sysbench.render import theme
from sysbench.render.dashboard.progress import show_status
from sysbench.spec import hardware
from sysbench.spec.validation import first_error
from sysbench.trace import traces

if TYPE_CHECKING:
    from sysbench.trace.ranks.reading import RankReading
    from sysbench.trace.ranks.summary import RanksSummary
    from sysbench.trace.recording import Recording
    from sysbench.trace.window import TraceSlice


TRACE_SUFFIXES: Mapping[Profiler, tuple[str, ...]] = {"torch": (".json", ".json.gz"), "nsys": (".nsys-rep",)}


def read_traces(kept: bool, placed: PlacedCell, trace: Path) -> Iterator[Event]:
    """Read the traces of a cell, one per rank, once its workers have finished; `kept` tells whether they stay.

    The summary of rank 0 and the comparison of all ranks go into the log, because traces are large and rarely kept.
    Raises SysbenchError if a trace is missing, unreadable or empty.
    """
    cell = placed.cell
    if not isinstance(cell, ProfileCell):
        raise TypeError(f"{cell.kind} leaves no trace")
    yield StageEntered(at_s=time.time(), cell=cell.key, stage="reading")
    if cell.profiler == "nsys":
        nsys.convert_raw_stream(trace)
    readings: list[RankReading] = []
    for rank, path in enumerate(paths_of_ranks(trace, cell.workers)):
        if not path.is_file():
            missing = "nsys left no report" if cell.profiler == "nsys" else "the worker left no trace"
            raise SysbenchError(f"rank {rank}: {missing}" if cell.workers > 1 else missing)
        kept_path = str(path) if kept else None
        written = TraceWritten(at_s=time.time(), cell=cell.key, path=kept_path, size_bytes=path.stat().st_size)
        yield OfRank(at_s=written.at_s, cell=cell.key, rank=rank, said=written) if rank else written
        recording = traces.read(path)
        if cell.workers > 1:
            from sysbench.trace.ranks import reading

            readings.append(replace(reading.read(recording), rank=rank))
        if rank == 0:
            device = hardware.by_name(cell.simulate) if cell.simulate else None
            summary = traces.summary_of(recording, cell, device=device)
            yield ProfileRead(at_s=time.time(), cell=cell.key, summary=summary)
    if (ranks := compare_ranks(readings)) is not None:
        yield RanksRead(at_s=time.time(), cell=cell.key, summary=ranks)


@dataclass(frozen=True)
class Files:
    """Paths of all files of a run, by cell key."""

    options: ProfileOptions
    provisions: Provisions
    windows: Mapping[str, Path]
    flames: Mapping[str, Path]

    @classmethod
    @contextmanager
    def prepared(cls, spec: ProfileSpec, options: ProfileOptions) -> Iterator[Files]:
        """Choose all paths; traces that are not kept go to a temporary directory.

        Raises UsageError or OutputError if a cell cannot run or a file cannot be written.
        """
        validate_output_formats(options)
        cells = list(spec.cells())
        refuse_impossible(cells)
        labels = labels_of(cells)
        artifacts, windows, flames = (paths_of(path, labels) for path in (options.trace, options.window, options.flame))
        with ExitStack() as temporary:
            if options.trace is None:
                directory = Path(temporary.enter_context(ScratchDirectory()))
                artifacts = {cell.key: directory / f"{cell.key}{TRACE_SUFFIXES[cell.profiler][0]}" for cell in cells}
            for cell in cells:
                _validate_suffix("--trace", artifacts[cell.key], TRACE_SUFFIXES[cell.profiler], cell.profiler)
            all_traces = (path for cell in cells for path in paths_of_ranks(artifacts[cell.key], cell.workers))
            for path in (*all_traces, *windows.values(), *flames.values()):
                storage.refuse_unwritable(path)
            launchers = {cell.key: nsys.launcher(artifacts[cell.key]) for cell in cells if cell.profiler == "nsys"}
            provisions = Provisions(artifacts, launchers, partial(read_traces, options.trace is not None))
            yield cls(options, provisions, windows, flames)

    def write(self, record: ProfileRecord) -> Iterator[Saved]:
        """Write the requested files for every profiled cell. Yields each file, and each trace that is kept."""
        for cell in record.cells:
            trace = self.provisions.artifacts[cell.key]
            if cell.summary is None or not trace.is_file():
                continue
            if self.options.trace is not None:
                yield from (Saved(path) for path in paths_of_ranks(trace, cell.cell.workers) if path.is_file())
            if (window := self.windows.get(cell.key)) is not None:
                # The trace is read again, for two reasons: failure to write the slice must not fail the cell, and a
                # resumed run has traces that an earlier run read.
                with show_status(f"extracting {window.name} from the trace", silent=self.options.quiet):
                    file = write_window(window, extract_range(traces.read(trace), self.options.range))
                yield file
            if (path := self.flames.get(cell.key)) is not None:
                flame.write(path, cell.summary, _drawing_title(cell.cell))
                yield Saved(path)


def _drawing_title(cell: ProfileCell) -> str:
    title = f"{cell.size} · ctx {cell.ctx} · batch {cell.batch} · {cell.precision} · {cell.mode}"
    return f"{title} · PREDICTED for {hardware.by_name(cell.simulate).title}" if cell.simulate else title


def extract_range(recording: Recording, range: str | None) -> TraceSlice:
    """Cut out the requested slice, limited to the number of rows that can be written."""
    from sysbench.trace import window

    return window.extract_slice(recording, window.find_window(recording, range), window.MAX_ROWS)


def write_window(path: Path, trace_slice: TraceSlice) -> Saved:
    from sysbench.trace import window

    try:
        cut_off_ns = window.write(path, trace_slice, window.MAX_BYTES)
    except OSError as error:
        raise storage.cannot_write(path, error) from error
    window_range, remark = trace_slice.window, ""
    source = "the trace" if window_range.range is None else f"`{theme.without_control_characters(window_range.range)}`"
    if cut_off_ns is not None:
        total_ns = max(window_range.end_ns, trace_slice.last_ns) - window_range.start_ns
        written_ns = max(cut_off_ns - window_range.start_ns, 0)
        limit = f"a slice is at most {window.MAX_BYTES / 1e6:g} MB"
        remark = f"the first {units.seconds(written_ns / 1e9)} of {units.seconds(total_ns / 1e9)} of {source}: {limit}"
    return Saved(path, remark)


def validate_output_formats(options: ProfileOptions) -> None:
    if options.window is not None:
        _validate_suffix("--window", options.window, (".json", ".json.gz"))
    if options.flame is not None:
        _validate_suffix("--flame", options.flame, (".html",))


def _validate_suffix(option: str, path: Path, suffixes: Sequence[str], profiler: Profiler | None = None) -> None:
    if not path.name.lower().endswith(tuple(suffixes)):
        condition = f" with --with {profiler}" if profiler is not None else ""
        raise UsageError(f"{option} {path.name} must end in {' or '.join(suffixes)}{condition}")


_RANK_IN_FILE_NAME: Final = re.compile(r"rank[-_.]?(\d+)", re.IGNORECASE)
"""Matches a rank in a file name, for traces that do not contain it."""


def with_rank(reading: RankReading) -> RankReading:
    """Return the reading with the rank in its file name, if the recording does not contain it."""
    match = _RANK_IN_FILE_NAME.search(reading.title) if reading.rank is None else None
    return replace(reading, rank=int(match[1])) if match else reading


def compare_ranks(readings: Sequence[RankReading], directory: Path | None = None) -> RanksSummary | None:
    """Compare the ranks of a run; None if a rank is unknown, or if the ranks do not communicate.

    Two traces of a rank in one directory are an error. Raises UsageError if the traces are from runs of different
    sizes, and LogError if the data are inconsistent.
    """
    from sysbench.trace.ranks.summarise import summarise

    ranks: dict[int, RankReading] = {}
    for reading in readings:
        if reading.rank is None or (reading.rank in ranks and directory is None):
            return None
        if reading.rank in ranks:
            raise UsageError(
                f"--from {directory} has two traces of rank {reading.rank}, {ranks[reading.rank].title} and "
                f"{reading.title}: keep one per rank, or list the files to compare them side by side"
            )
        ranks[reading.rank] = reading
    sizes = {reading.world_size: reading for reading in readings if reading.world_size is not None}
    if len(sizes) > 1:
        examples = " and ".join(f"{reading.title} of {size}" for size, reading in [*sizes.items()][:2])
        raise UsageError(f"the traces come from different runs: {examples} ranks")
    try:
        return summarise(ranks) if any(reading.collectives for reading in readings) else None
    except ValidationError as error:
        titles = ", ".join(rank.title for rank in ranks.values())
        raise LogError(f"{titles}: inconsistent data: {first_error(error)}") from None
