"""Command line of `sysbench profile`: run a spec, or show a finished run or traces."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sysbench.commands import refusals, running, showing
from sysbench.commands.prediction_checks import refuse_unpredictable
from sysbench.commands.profile import files as profile_files
from sysbench.commands.profile import flame
from sysbench.commands.profile.files import compare_ranks, with_rank
from sysbench.commands.profile.record import ProfileRecord
from sysbench.commands.profile.spec import ProfileOptions, ProfileSpec
from sysbench.commands.showing import Saved
from sysbench.commands.surroundings import ALONE, RunResult, RunSurroundings
from sysbench.errors import UsageError, nearest
from sysbench.log import storage
from sysbench.log.records import typed
from sysbench.log.runs import is_log_or_record
from sysbench.render.dashboard.progress import show_status
from sysbench.spec import hardware
from sysbench.trace import traces

if TYPE_CHECKING:
    from sysbench.trace.ranks.reading import RankReading
    from sysbench.trace.readers.reading import Progress
    from sysbench.trace.recording import Recording
    from sysbench.trace.summary import ProfileSummary
    from sysbench.trace.window import TraceSlice


def perform(spec: ProfileSpec, options: ProfileOptions, surroundings: RunSurroundings = ALONE) -> RunResult:
    if spec.simulate:
        refuse_unpredictable(spec.simulate, spec.host, force=options.force)
        for gpu in map(hardware.by_name, spec.simulate):
            if gpu.synchronous:  # no lanes to draw
                raise UsageError(
                    f"--simulate {gpu.slug}: its host and device are the same; sysbench time --simulate predicts the "
                    "step"
                )
        options = options.model_copy(update={"no_live": True})
    with profile_files.Files.prepared(spec, options) as files:
        record = typed(running.run_cells(spec, options, surroundings, files.provisions), ProfileRecord)
        return RunResult(record, showing.report_saved(files.write(record), options))


_NSYS_REPORT_SUFFIX = ".nsys-rep"
_TRACE_SUFFIXES = (".json", ".json.gz", ".sqlite", _NSYS_REPORT_SUFFIX)


def show(paths: Sequence[Path], options: ProfileOptions) -> None:
    """Show traces, a log or a record, and write the requested files; raises LogError for other files."""
    if options.trace is not None:
        raise UsageError("--trace keeps the trace of a run; --from reads an existing one")
    refusals.refuse_unknown_tables("profile", options)
    profile_files.validate_output_formats(options)
    directory = next((path for path in paths if path.is_dir()), None)
    paths = [each for path in paths for each in (_traces_in(path) if path.is_dir() else [path])]
    log_or_record = next((path for path in paths if is_log_or_record(path)), None)
    if log_or_record is None:
        _show_traces(paths, directory, options)
        return
    if len(paths) > 1:
        raise UsageError(f"--from takes one log or record, or several traces; {log_or_record} is a log or record")
    for option, path in (("--window", options.window), ("--flame", options.flame)):
        if path is not None:
            raise UsageError(f"{option} needs a trace, and {log_or_record} is not one: give the trace to --from")
    from sysbench.commands import saved

    showing.show_saved(saved.record(log_or_record, "profile"), options)


def _traces_in(directory: Path) -> list[Path]:
    """Return all traces in a directory; a report of Nsight Systems is omitted if its export is there too."""
    paths = sorted(path for path in directory.iterdir() if path.name.lower().endswith(_TRACE_SUFFIXES))
    if not paths:
        raise UsageError(f"--from {directory} contains no trace ({', '.join(_TRACE_SUFFIXES)})")
    return [path for path in paths if path.suffix != _NSYS_REPORT_SUFFIX or path.with_suffix(".sqlite") not in paths]


def _show_traces(paths: Sequence[Path], directory: Path | None, options: ProfileOptions) -> None:
    from sysbench.commands.kinds import command_of
    from sysbench.commands.profile.record import TraceRecord
    from sysbench.commands.profile.tables import traces_sheet
    from sysbench.render import output

    if len(paths) > 1 and (options.window or options.flame):
        raise UsageError("--window and --flame need a single trace: give --from one file")
    for target in (options.window, options.flame, options.json_path and Path(options.json_path)):
        if target and str(target) != "-":
            storage.refuse_unwritable(target)
    with show_status("reading", silent=options.quiet) as progress:
        loaded = [_load_trace(path, options, progress, several=len(paths) > 1) for path in paths]
    ranks = compare_ranks([trace.rank for trace in loaded if trace.rank], directory)
    summaries = [trace.summary for trace in loaded]
    if ranks is not None:
        summaries.sort(key=lambda each: each.rank or 0)
    record_json = TraceRecord(summaries=summaries, ranks=ranks).model_dump_json(indent=1)
    with output.results() as console:
        if options.json_path == "-":
            output.print_json(record_json)
        else:
            # CSV holds a single table, as for a record.
            tables = options.tables or (
                (command_of("profile").results().long_table,) if options.format == "csv" else ()
            )
            output.show_sheet(
                traces_sheet(summaries, tables, options.selection, ranks), console, options.format, options.columns
            )
    if options.json_path not in (None, "-"):
        storage.write_atomically(Path(options.json_path), record_json.encode() + b"\n")
    showing.report_saved(_write_outputs(loaded[0], options), options)


class _LoadedTrace(NamedTuple):
    summary: ProfileSummary
    trace_slice: TraceSlice | None
    """The requested slice."""
    rank: RankReading | None
    """Reading for the comparison of ranks; None for a single trace without collectives."""


def _load_trace(path: Path, options: ProfileOptions, progress: Progress, *, several: bool) -> _LoadedTrace:
    """Read a trace. The summary is made last, because making it consumes the recording."""
    from sysbench.trace.ranks import reading

    recording = traces.read(path, progress)
    if options.step_pattern is not None:
        recording = _with_steps(recording, options.step_pattern, path)
    trace_slice = profile_files.extract_range(recording, options.range) if options.window is not None else None
    rank = None
    if several or len(recording.collectives):
        rank = with_rank(reading.read(recording))
        recording = replace(recording, rank=rank.rank)
    return _LoadedTrace(traces.summary_of(recording, progress=progress), trace_slice, rank)


def _with_steps(recording: Recording, step_pattern: str, path: Path) -> Recording:
    from sysbench.commands.profile.profiles import matching_names
    from sysbench.trace.range_tree import range_names

    names = range_names(recording)
    if not matching_names(re.compile(step_pattern).fullmatch, names, f"--step-pattern {step_pattern}"):
        suggestion = nearest(step_pattern, names)
        raise UsageError(
            f"--step-pattern {step_pattern} matches no range of {path.name}"
            + (f". Did you mean {suggestion}?" if suggestion else "")
        )
    return replace(recording, step_pattern=step_pattern)


def _write_outputs(trace: _LoadedTrace, options: ProfileOptions) -> Iterator[Saved]:
    if options.window is not None and trace.trace_slice is not None:
        with show_status(f"writing {options.window.name}", silent=options.quiet):
            file = profile_files.write_window(options.window, trace.trace_slice)
        yield file
    if options.flame is not None:
        flame.write(options.flame, trace.summary, trace.summary.title)
        yield Saved(options.flame)
