"""The dashboard of a run: a title, one progress bar, one chart, the load of the machine, and the recent cells."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Final, Generic

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.text import Text
from typing_extensions import TypeVar

from sysbench import cells as axes
from sysbench import units
from sysbench.log.events import Event, Reading
from sysbench.render import theme
from sysbench.render.dashboard import run_state
from sysbench.render.dashboard.experiment_progress import ExperimentProgress
from sysbench.render.dashboard.remaining import remaining_text, round_remaining
from sysbench.render.dashboard.run_state import CellState, RunState

Shown = TypeVar("Shown", bound=CellState, default=CellState)

Piece = tuple[str, str]
"""A text and its style."""

MODEL_AXES: Final = ("size", "ctx", "precision", "mode")
"""Axes that name a cell with a model."""

MIN_MARGIN_WIDTH = 40
"""Smallest width of a terminal for a left margin."""

MIN_LABEL_WIDTH, LABEL_WIDTH = 32, 9
"""Width below which lines have no label, so that values keep their units; and the width of labels."""

MIN_BAR_WIDTH, MAX_BAR_WIDTH = 6, 48

MIN_TITLE_WIDTH = 24
"""Width for the title below which the number of the cell is left out."""

MIN_OTHER_LOAD = 0.05
"""Smallest load of other processes that is shown."""

IMPORTANCE: Final = ("progress", "title", "warnings", "notice", "chart", "load", "hardware")
"""Parts of the screen, in the order in which they get the lines of a low terminal."""

SEPARATED: Final = ("notice", "progress", "chart", "recent")
"""Parts below an empty line, if there is room."""


@dataclass(frozen=True)
class Progress:
    """How far a stage of a cell is: a bar, unless `total` is 0 (unknown), and texts, the most important first."""

    completed: int = 0
    total: int = 0
    texts: tuple[Piece, ...] = ()


@dataclass(frozen=True)
class CellScreen(Generic[Shown]):
    """The display of a run at one moment, which never exceeds the size of the terminal."""

    state: RunState[Shown]
    now_s: float
    overall: ExperimentProgress | None = None
    """Progress of the experiment to which the run belongs."""

    initial: ClassVar[Any] = RunState[CellState]()
    """State before the first event."""
    advance: ClassVar[Callable[[Any, Event], Any]] = partial(
        run_state.advance, run_state.handlers(RunState, CellState, {})
    )
    """Return the state after another event; a pure function."""
    is_drawn: ClassVar[bool] = True
    """Whether the run has a dashboard; otherwise it has a line for each cell, even on a terminal."""
    times_steps: ClassVar[bool] = True
    """Whether drawing could disturb what is measured."""

    # --- what a command may replace

    @staticmethod
    def result(cell: Shown) -> str:
        """Return the outcome of a finished cell in a few words."""
        return f"{cell.outcome}: {cell.detail}" if cell.detail else str(cell.outcome)

    @classmethod
    def labelled(cls, cell: Shown) -> tuple[str, ...]:
        """Return the axes that are always part of this cell's label, even if all cells agree in them."""
        return MODEL_AXES

    @classmethod
    def label(cls, cell: Shown, state: RunState[Shown]) -> str:
        """Name a cell by the axes in which the cells of the run differ, and by those that are always labelled."""
        return axes.label(cell.cell, list(dict.fromkeys((*cls.labelled(cell), *state.differing_axes))))

    @staticmethod
    def device_line(state: RunState[Shown]) -> str:
        """Return the device and the version of torch, for output without a terminal."""
        simulated = all(cell.cell.simulated for _, cell in state.cells)
        names = [] if simulated else [device.name for device in state.devices[:1]]
        return " · ".join([*names, *([f"torch {state.torch.torch}"] if state.torch else [])])

    @staticmethod
    def news(state: Any, event: Event) -> str | None:
        """Return what this event says that cannot wait for the end of its cell, for output without a terminal."""
        return None

    def cell_remaining_s(self) -> float | None:
        """Return the remaining seconds of the current cell; None if they cannot be estimated."""
        return None

    def remaining_s(self) -> float | None:
        """Return the remaining seconds of the run; None if they cannot be estimated."""
        return None

    def notice(self) -> tuple[str, str] | None:
        """Return a warning and its remedy, if there is one."""
        return None

    def subject(self, cell: Shown) -> Sequence[str]:
        """Return phrases for the title, which name a cell."""
        return axes.subject([cell.cell])

    def where(self, cell: Shown) -> str:
        """Return the device of a cell, or the GPU that is simulated for it."""
        device = self.state.device
        return f"simulated for {cell.cell.simulated}" if cell.cell.simulated else device.name if device else ""

    def facts(self, cell: Shown) -> Iterable[str]:
        """Return what to say about a cell beside the device."""
        return ()

    def progress(self, cell: Shown) -> Progress:
        """Return how far the current stage of the running cell is."""
        return Progress()

    def chart(self, console: Console, width: int) -> Iterator[Text]:
        """Yield the lines of the chart below the progress."""
        yield from ()

    # --- the layout

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield each line, followed by a line end."""
        margin = 1 if options.max_width >= MIN_MARGIN_WIDTH else 0
        width = max(1, options.max_width - margin - 1)
        parts = {
            "warnings": list(self._warnings(console, width)),
            "title": [self._title(width)],
            "hardware": [self._hardware(width)],
            "notice": list(self.notice_lines(console, width)),
            "progress": [self._progress(console, options, width)],
            "chart": list(self.chart(console, width)),
            "load": list(self._load(width)),
            "recent": [],
        }
        spare = max(1, options.height or options.size.height)
        for name in IMPORTANCE:
            parts[name] = parts[name][:spare]
            spare -= len(parts[name])
        finished = list(self.state.ended.values()) if len(self.state.planned) > 1 else []
        separated = SEPARATED if parts["chart"] else (*SEPARATED, "load")
        gaps = sum(bool(parts[name]) for name in separated) + bool(finished)
        has_gaps = spare > gaps
        spare -= gaps if has_gaps else 0
        parts["recent"] = self._results(finished[-spare:] if spare else [])
        for name, lines in parts.items():
            if has_gaps and lines and name in separated:
                yield Segment.line()
            for line in lines:
                yield Segment(" " * margin)
                yield from _fitted(line, console, width)
                yield Segment.line()

    def _warnings(self, console: Console, width: int) -> Iterator[Text]:
        if self.overall is not None:
            yield joined([(self.overall.describe(self.now_s, self.remaining_s()), theme.QUIET)], width)
        for warning in self.state.warnings:
            yield from wrapped(warning, theme.WARNING, console, width)

    def _title(self, width: int) -> Text:
        state, now = self.state, self.state.current_cell
        count = len(state.planned)
        ending = Text()
        if count > 1:
            number = min(len(state.ended) + (now is None or now.outcome is None), count)
            left_s = self.remaining_s()
            left = [(remaining_text(round_remaining(left_s)), theme.QUIET)] if left_s else []
            ending = joined([(f"cell {number} of {count}", "bold"), *left], width)
        if width - ending.cell_len < MIN_TITLE_WIDTH:
            ending = Text()
        line = Text.assemble((f"{state.kind if count else ''}  ", theme.ACCENT))
        room = width - line.cell_len - ending.cell_len - 2 * bool(ending)
        phrases = self.subject(now) if now is not None else ()
        line.append_text(joined([(phrase, theme.TITLE if at < 4 else "") for at, phrase in enumerate(phrases)], room))
        line.pad_right(width - line.cell_len - ending.cell_len)
        return line.append_text(ending)

    def _hardware(self, width: int) -> Text:
        state, now, device = self.state, self.state.current_cell, self.state.device
        if now is not None:
            names = [self.where(now), *self.facts(now)]
        else:
            names = [device.name if device else state.host.cpu if state.host else ""]
        if state.torch is not None:
            names.append(f"torch {state.torch.torch}")
            if device is not None and device.type == "cpu" and not (now and now.cell.simulated):
                names.append(axes.phrase("threads", (now and now.cell.threads) or state.torch.threads))
        return joined([(name, theme.QUIET) for name in names], width)

    def notice_lines(self, console: Console, width: int) -> Iterator[Text]:
        """Yield the lines of the notice."""
        if notice := self.notice():
            text, remedy = notice
            yield from wrapped(text, theme.WARNING, console, width)
            yield from wrapped(f"→ {remedy}", theme.ACCENT, console, width)

    def _stage(self) -> tuple[str, Progress]:
        """Return what the run is doing, and how far it is."""
        state, now = self.state, self.state.current_cell
        if now is None or (not state.worker_ready and len(state.ended) < len(state.planned)):
            name = "preparing" if state.worker_ready else "starting the worker"
            return name, Progress(texts=((self._since(state.worker_since_s), ""),))
        if now.outcome is not None:
            name = "done" if now.outcome == "ok" else str(now.outcome)
            return name, Progress(texts=((self.result(now) if now.outcome == "ok" else now.detail or "", "bold"),))
        name, progress, left_s = (
            (now.stage or "building").replace("-", " "),
            self.progress(now),
            self.cell_remaining_s(),
        )
        left = (remaining_text(left_s) if left_s is not None else "", theme.QUIET)
        if not progress.total:
            return name, replace(progress, texts=((self._since(now.stage_since_s), ""), *progress.texts, left))
        elapsed = f"{clock_time(self.now_s - (now.started_s or self.now_s))} elapsed"
        return name, replace(progress, texts=(*progress.texts, left, (elapsed, "")))

    def _since(self, since_s: float) -> str:
        return units.duration(max(0.0, self.now_s - since_s))

    def _progress(self, console: Console, options: ConsoleOptions, width: int) -> Text:
        name, progress = self._stage()
        if width < MIN_LABEL_WIDTH and progress.total:
            return joined(progress.texts, width, " ")
        line = Text.assemble((f"{name} ", theme.ACCENT))
        texts = joined(progress.texts, max(0, width - line.cell_len), "   ")
        shown_width = cell_len(theme.terminal_line(texts.plain, console.encoding))
        room = min(MAX_BAR_WIDTH, width - line.cell_len - shown_width - 2)
        if progress.total and room >= MIN_BAR_WIDTH:
            bar = ProgressBar(progress.total, progress.completed, width=room, complete_style="cyan")
            end = line.cell_len + room + 2
            for segment in console.render(bar, options):
                line.append(segment.text, segment.style)
            line.pad_right(end - line.cell_len)
        return line.append_text(texts)

    def _load(self, width: int) -> Iterator[Text]:
        state, reading = self.state, self.state.reading
        if reading is None or state.host is None or state.device is None:
            return
        peak = state.current_cell.peak_bytes if state.current_cell else None
        if state.device.type == "cuda" and reading.device_used_bytes is not None:
            yield _memory(width, reading.device_used_bytes, peak, state.device.memory_bytes, "")
        elif reading.host_rss_bytes is not None:
            yield _memory(width, reading.host_rss_bytes, peak, state.host.memory_bytes, "used by the worker")
        if load := list(_load(reading)):
            yield labelled("device" if reading.device_utilisation is not None else "host", load, width)

    def _results(self, finished: Sequence[Shown]) -> list[Text]:
        labels = [self.label(cell, self.state) for cell in finished]
        longest = max(map(cell_len, labels), default=0)
        return [
            Text.assemble(
                (set_cell_size(label, longest + 2), theme.QUIET),
                (self.result(cell), "" if cell.outcome == "ok" else theme.BAD),
            )
            for label, cell in zip(labels, finished, strict=True)
        ]


class LinesOnly(CellScreen):
    """Progress of commands whose cells are too short for a dashboard."""

    is_drawn = False

    @classmethod
    def label(cls, cell: CellState, state: RunState) -> str:
        """Return the title of the cell."""
        return str(cell.cell.title)


# --- lines


def joined(pieces: Iterable[Piece], width: int, separator: str = " · ") -> Text:
    """Join as many texts as fit on one line; the first is cut if necessary."""
    line = Text()
    for content, style in pieces:
        text = theme.terminal_line(content, "utf-8")
        joint = separator if line.plain and text else ""
        if line.plain and line.cell_len + cell_len(joint + text) > width:
            break
        line.append(joint, "dim").append(text, style)
    line.truncate(max(0, width), overflow="ellipsis")
    return line


def labelled(name: str, pieces: Iterable[Piece], width: int, separator: str = " · ") -> Text:
    """Return a line of texts after its label, which a narrow terminal lacks."""
    label = name.ljust(LABEL_WIDTH) if width >= MIN_LABEL_WIDTH else ""
    return Text.assemble((label, theme.QUIET)).append_text(joined(pieces, width - len(label), separator))


def wrapped(text: str, style: str, console: Console, width: int) -> Iterator[Text]:
    """Yield a text on as many lines as it needs."""
    yield from Text.assemble((theme.terminal_line(text, console.encoding), style)).wrap(console, width)


def clock_time(seconds: float) -> str:
    """Format a time that has passed: `3:05`."""
    minutes, rest_s = divmod(max(0, int(seconds)), 60)
    return f"{minutes}:{rest_s:02d}"


def _fitted(line: Text, console: Console, width: int) -> Iterable[Segment]:
    """Return a line in characters that the terminal can show, cut to its width."""
    line.truncate(width, overflow="ellipsis")
    shown = [
        Segment(theme.terminal_line(segment.text, console.encoding), segment.style) for segment in line.render(console)
    ]
    return Segment.adjust_line_length(shown, width, pad=False)


def _memory(width: int, used: int, peak: int | None, total: int | None, what: str) -> Text:
    scale = units.shared_scale("bytes", [total or used])
    of_total = f" of {scale.digits(total, 1)}" if total else ""
    style = theme.BAD if used > 0.95 * (total or used) else ""
    pieces = [(f"{scale.digits(used, 1)}{of_total} {scale.symbol} {what}".rstrip(), style)]
    pieces += [(f"peak {scale.digits(peak, 1)} {scale.symbol}", "")] if peak else []
    return labelled("memory", pieces, width)


def _load(reading: Reading) -> Iterator[Piece]:
    if reading.device_utilisation is not None:
        yield f"{units.share(reading.device_utilisation)} busy", ""
    if reading.sm_clock_hz is not None:
        yield units.frequency(reading.sm_clock_hz), ""
    if reading.power_w is not None:
        yield f"{reading.power_w:.0f} W", ""
    if reading.temperature_c is not None:
        yield f"{reading.temperature_c:.0f} °C", ""
    if reading.throttle_reasons:
        yield f"throttled: {', '.join(reading.throttle_reasons)}", theme.WARNING
    if reading.host_cpu_share is not None and reading.host_cpu_share >= MIN_OTHER_LOAD:
        yield f"other processes use {units.share(reading.host_cpu_share)} of the CPU", theme.WARNING
