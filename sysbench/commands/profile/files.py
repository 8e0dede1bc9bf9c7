"""The files that a run of `sysbench profile` leaves beside its record: traces, slices of them, pictures."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sysbench import units
from sysbench.commands.profile.spec import ProfileCell, ProfileOptions, Profiler, ProfileSpec
from sysbench.commands.running import Saved
from sysbench.engine.launchers import NsysLauncher
from sysbench.engine.provisions import Provisions
from sysbench.engine.traces import TraceReader, read
from sysbench.errors import UsageError
from sysbench.log import storage
from sysbench.log.file_names import labels_of, paths_of
from sysbench.log.records import RunRecord
from sysbench.render.dashboard.progress import waiting

if TYPE_CHECKING:
    from sysbench.trace.chrome_trace import Written
    from sysbench.trace.packed import Recording
    from sysbench.trace.summary import ProfileSummary
    from sysbench.trace.window import Cut

AXES = (
    *("size", "batch", "ctx", "attention", "execution", "optimizer", "precision", "mode", "device"),
    *("profiler", "active", "warmup", "steps"),
)
"""In the order in which names say them."""

TRACE_ENDINGS: Mapping[Profiler, tuple[str, ...]] = {"torch": (".json", ".json.gz"), "nsys": (".nsys-rep",)}
WINDOW_ENDINGS = (".json", ".json.gz")
FLAME_ENDINGS = (".svg", ".html")


@dataclass(frozen=True)
class Files:
    """Where everything goes, by the keys of cells."""

    provisions: Provisions
    kept: bool
    """Whether traces stay."""
    windows: Mapping[str, Path]
    flames: Mapping[str, Path]
    titles: Mapping[str, str]
    range: str | None
    quiet: bool

    @classmethod
    @contextmanager
    def prepared(cls, spec: ProfileSpec, options: ProfileOptions) -> Iterator[Files]:
        """Names for all files; raises UsageError and OutputError for what could not be written, or profiled with."""
        refuse_other_endings(options)
        cells = list(spec.cells())
        labels = labels_of(cells, AXES)
        kept, windows, flames = (paths_of(path, labels) for path in (options.trace, options.window, options.flame))
        with ExitStack() as temporary:
            traces = kept or _temporary(cells, temporary)
            for cell in cells:
                _refuse_other_ending("--trace", traces[cell.key], TRACE_ENDINGS[cell.profiler], cell.profiler)
            for path in (*kept.values(), *windows.values(), *flames.values()):
                storage.refuse_unwritable(path)
            launchers = {cell.key: NsysLauncher(traces[cell.key]) for cell in cells if cell.profiler == "nsys"}
            reader = TraceReader(bool(kept), ranges_wanted(options))
            titles = {cell.key: _title(cell) for cell in cells}
            provisions = Provisions(traces, launchers, reader)
            yield cls(provisions, bool(kept), windows, flames, titles, options.range, options.quiet)

    def draw(self, record: RunRecord[Any]) -> Iterator[Saved]:
        """Write what was asked for of every cell that was profiled; yields every file there is now."""
        for cell in record.cells:
            trace = self.provisions.artifacts[cell.key]
            if cell.summary is None or not trace.is_file():
                continue
            if self.kept:
                yield Saved(trace)
            window, flame = self.windows.get(cell.key), self.flames.get(cell.key)
            if window is not None:
                # Read again: a cell is measured whether or not its slice can be cut and written, and a run that is
                # resumed has traces that were read by another one.
                with waiting(f"cutting {window.name} out of the trace", silent=self.quiet):
                    file = write_window(window, taken(read(trace), self.range))
                yield file
            if flame is not None:
                yield write_flame(flame, cell.summary, self.titles[cell.key])


def taken(recording: Recording, range: str | None) -> Cut:
    """The slice that is wanted, as it can be written; raises UsageError where there is no such range."""
    from sysbench.trace import chrome_trace, window

    return window.cut(recording, window.find(recording, range), chrome_trace.MOST_ROWS)


def write_window(path: Path, cut: Cut) -> Saved:
    """Write a slice of a trace; raises OutputError."""
    from sysbench.trace import chrome_trace

    try:
        written = chrome_trace.write(path, cut, chrome_trace.LARGEST_BYTES)
    except OSError as error:
        raise storage.cannot_write(path, error) from error
    return Saved(path, _told(cut, written))


def write_flame(path: Path, summary: ProfileSummary, title: str) -> Saved:
    """Draw the picture of a summary; raises OutputError."""
    from sysbench.commands.profile import flame as profile_flame

    profile_flame.write(path, summary, title)
    return Saved(path)


def _told(cut: Cut, written: Written) -> str:
    from sysbench.render import theme
    from sysbench.trace.chrome_trace import LARGEST_BYTES

    window = cut.window
    of = "the trace" if window.range is None else f"`{theme.harmless(window.range)}`"
    if written.cut_off_ns is not None:
        whole_ns = max(window.end_ns, cut.last_ns) - window.start_ns
        there, whole = (units.seconds(each / 1e9) for each in (max(written.cut_off_ns - window.start_ns, 0), whole_ns))
        return f"the first {there} of {whole} of {of}: a slice is at most {LARGEST_BYTES / 1e6:g} MB"
    return f"nothing but ranges: no operator and no kernel is in {of}" if cut.is_empty else ""


def refuse_other_endings(options: ProfileOptions) -> None:
    """Raise UsageError for files in a format that there is not."""
    for name, path, endings in (
        ("--window", options.window, WINDOW_ENDINGS),
        ("--flame", options.flame, FLAME_ENDINGS),
    ):
        if path is not None:
            _refuse_other_ending(name, path, endings)


def ranges_wanted(options: ProfileOptions) -> Sequence[str]:
    """The ranges that need a table of their own."""
    return (options.range,) if options.range is not None else ()


def _refuse_other_ending(option: str, path: Path, endings: Sequence[str], profiler: Profiler | None = None) -> None:
    if not path.name.lower().endswith(tuple(endings)):
        told = f" with --with {profiler}" if profiler is not None else ""
        raise UsageError(f"{option} {path.name} must end in {' or '.join(endings)}{told}")


def _temporary(cells: Sequence[ProfileCell], open_until_then: ExitStack) -> dict[str, Path]:
    """A directory that goes when everything has been read."""
    directory = Path(open_until_then.enter_context(tempfile.TemporaryDirectory(prefix="sysbench-")))
    return {cell.key: directory / f"{cell.key}{TRACE_ENDINGS[cell.profiler][0]}" for cell in cells}


def _title(cell: ProfileCell) -> str:
    return f"{cell.size} · ctx {cell.ctx} · batch {cell.batch} · {cell.precision} · {cell.mode}"
