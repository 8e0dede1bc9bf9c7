"""The dashboard of a run with cells: a stack of slots, which all commands have or a command fills.

Each slot states how many lines it needs and how many it could use; a low terminal shows only the most important ones.
Slots of variable height are below those of fixed height, so that nothing moves as results arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final, Generic

from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.text import Text
from typing_extensions import TypeVar

from sysbench import cells as axes
from sysbench import units
from sysbench.log.events import Event, Reading
from sysbench.render import theme
from sysbench.render.dashboard import run_state
from sysbench.render.dashboard.board import Quantity, board
from sysbench.render.dashboard.canvas import MIN_LABEL_WIDTH, Canvas, Piece, memoized, remaining_text, round_remaining
from sysbench.render.dashboard.run_state import CellState, RunState

State = TypeVar("State", bound=RunState, default=RunState)

MODEL_AXES: Final = ("size", "ctx", "precision", "mode")
"""Axes that name a cell with a model."""

MIN_MARGIN_WIDTH = 40
"""Smallest width for a left margin."""

MAX_PROGRESS_WIDTH, MAX_MEMORY_WIDTH = 48, 24

MIN_BOARD_ROWS, MAX_BOARD_ROWS = 4, 40
"""Rows that a board needs, if there are as many, and has at most."""

MIN_OTHER_LOAD = 0.05
"""Smallest load of other processes that is shown."""

PROGRESS, TITLE, MEMORY, DETAILS, NOTICE, BOARD, BELOW, HARDWARE, SENSORS, RECENT = range(10)
"""Slots by importance, the most important first."""


@dataclass(frozen=True)
class Slot:
    """A part of the screen between `least` and `most` lines high."""

    importance: int
    lines: Callable[[int], Sequence[Text]]
    """Return at most as many lines as the argument says."""
    least: int = 1
    most: int = 1
    gap: bool = False
    """Whether an empty line separates the slot from the one above, if there is room."""


def fixed(importance: int, lines: Sequence[Text], *, gap: bool = False) -> Slot:
    """Return a slot with exactly these lines."""
    return Slot(importance, lambda _: lines, len(lines), len(lines), gap)


@dataclass(frozen=True)
class Progress:
    """How far a stage of a cell is: a bar, unless `total` is 0 (unknown), and texts, the most important first."""

    completed: int = 0
    total: int = 0
    texts: tuple[Piece, ...] = ()


@dataclass(frozen=True)
class CellScreen(Generic[State]):
    """The display of a run at one moment, which never exceeds the size of the terminal; a command fills its slots."""

    state: State
    now_s: float

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

    # --- what a command may fill

    @staticmethod
    def result(cell: Any) -> str:
        """Return the outcome of a finished cell in a few words."""
        return f"{cell.outcome}: {cell.detail}" if cell.detail else str(cell.outcome)

    @classmethod
    def labelled(cls, cell: Any) -> tuple[str, ...]:
        """Return the axes that are always part of this cell's label, even if all cells agree in them."""
        return MODEL_AXES

    @classmethod
    def label(cls, cell: Any, state: Any) -> str:
        """Name a cell by the axes in which the cells of the run differ, and by those that are always labelled."""
        shown = dict.fromkeys((*cls.labelled(cell), *differing_axes(state.planned)))
        return axes.label(cell.cell, list(shown))

    @staticmethod
    def device_line(state: Any) -> str:
        """Return the device and the version of torch, for output without a terminal."""
        simulated = all(cell.cell.simulated for _, cell in state.cells)
        names = [] if simulated else [device.name for device in state.devices[:1]]
        return " · ".join([*names, f"torch {state.torch.torch}"])

    def remaining_s(self) -> float | None:
        """Return the remaining seconds of the run; None if they cannot be estimated."""
        return None

    def notice(self) -> tuple[str, str] | None:
        """Return a warning and its remedy, if there is one."""
        return None

    def quantities(self) -> Sequence[Quantity]:
        """Return the results of which the screen shows a board each."""
        return ()

    def subject(self, cell: Any) -> Sequence[str]:
        """Return phrases for the title, which name a cell."""
        return axes.subject([cell.cell])

    def where(self, cell: Any) -> str:
        """Return the device of a cell, or the GPU that is simulated for it."""
        device = self.state.device
        return f"simulated for {cell.cell.simulated}" if cell.cell.simulated else device.name if device else ""

    def facts(self, cell: Any) -> Iterable[str]:
        """Return what to say about a cell beside the device."""
        return ()

    def progress(self, cell: Any) -> Progress:
        """Return how far the current stage of the running cell is."""
        return Progress()

    def details(self, canvas: Canvas) -> Iterator[Slot]:
        """Yield slots between the progress of the current cell and the sensors."""
        yield from ()

    def below(self, canvas: Canvas) -> Iterator[Slot]:
        """Yield slots below all others."""
        yield from ()

    def recent(self, canvas: Canvas) -> Slot | None:
        """Return the most recently finished cells."""
        ended = list(self.state.ended.values())
        if not ended or len(self.state.planned) < 2:
            return None

        def line(cell: Any) -> Text:
            style = "" if cell.outcome == "ok" else theme.BAD
            return Text(f"{self.label(cell, self.state)}  ", theme.QUIET).append(self.result(cell), style)

        return Slot(RECENT, lambda height: [line(cell) for cell in ended[-height:]], 1, len(ended), gap=True)

    # --- the layout

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield each line, followed by a line end."""
        margin = 1 if options.max_width >= MIN_MARGIN_WIDTH else 0
        canvas = Canvas(console, max(1, options.max_width - margin - 1))
        height = max(1, options.height or options.size.height)
        for line in stacked(list(self._slots(canvas)), height):
            yield Segment(" " * margin)
            yield from canvas.fitted(line).render(console)
            yield Segment.line()

    def _slots(self, canvas: Canvas) -> Iterator[Slot]:
        yield fixed(TITLE, [self._title(canvas)])
        yield fixed(HARDWARE, [self._hardware(canvas)])
        if notice := self.notice():
            text, remedy = notice
            lines = [*canvas.wrap(text, theme.WARNING), *canvas.wrap(f"→ {remedy}", theme.ACCENT)]
            yield fixed(NOTICE, lines, gap=True)
        yield fixed(PROGRESS, [self._progress(canvas)], gap=True)
        yield from self.details(canvas)
        yield from self._sensors(canvas)
        yield from self._boards(canvas)
        if recent := self.recent(canvas):
            yield recent
        yield from self.below(canvas)

    def _title(self, canvas: Canvas) -> Text:
        state, now = self.state, self.state.current_cell
        count = len(state.planned)
        ending = Text()
        if count > 1:
            number = min(len(state.ended) + (now is None or now.outcome is None), count)
            left_s = self.remaining_s()
            left = [(remaining_text(round_remaining(left_s)), theme.QUIET)] if left_s else []
            ending = canvas.join([(f"cell {number} of {count}", "bold"), *left])
        kind = f"{state.kind if count else ''}  "
        if canvas.width - ending.cell_len < 24:
            ending = Text()
        room = canvas.width - ending.cell_len - len(kind) - 2 * bool(ending)
        phrases = self.subject(now) if now is not None else ()
        subject = canvas.join([(phrase, theme.TITLE if at < 4 else "") for at, phrase in enumerate(phrases)], room)
        line = Text().append(kind, theme.ACCENT).append_text(subject)
        return line.append(" " * (canvas.width - line.cell_len - ending.cell_len)).append_text(ending)

    def _hardware(self, canvas: Canvas) -> Text:
        state, now, device = self.state, self.state.current_cell, self.state.device
        if now is not None:
            names = [self.where(now), *self.facts(now)]
        else:
            names = [device.name if device else state.host.cpu if state.host else ""]
        if state.torch is not None:
            names.append(f"torch {state.torch.torch}")
            if device is not None and device.type == "cpu" and not (now and now.cell.simulated):
                names.append(axes.phrase("threads", (now and now.cell.threads) or state.torch.threads))
        return canvas.join([(name, theme.QUIET) for name in names if name])

    def _progress(self, canvas: Canvas) -> Text:
        state, now = self.state, self.state.current_cell
        if now is None or (not state.worker_ready and len(state.ended) < len(state.planned)):
            name, since_s = "preparing" if state.worker_ready else "starting the worker", state.worker_since_s
            return _progress_line(canvas, name, self._waited(since_s))
        if now.outcome is not None:
            name = "done" if now.outcome == "ok" else str(now.outcome)
            text = self.result(now) if now.outcome == "ok" else now.detail or ""
            return _progress_line(canvas, name, Progress(texts=((text, "bold"),)))
        progress = self.progress(now)
        if not progress.total:
            progress = Progress(texts=(*self._waited(now.stage_since_s).texts, *progress.texts))
        return _progress_line(canvas, (now.stage or "building").replace("-", " "), progress)

    def _waited(self, since_s: float) -> Progress:
        return Progress(texts=((units.duration(max(0.0, self.now_s - since_s)), ""),))

    def _sensors(self, canvas: Canvas) -> Iterator[Slot]:
        state, reading = self.state, self.state.reading
        if reading is None or state.host is None or state.device is None:
            return
        peak = state.current_cell.peak_bytes if state.current_cell else None
        if state.device.type == "cuda" and reading.device_used_bytes is not None:
            yield fixed(MEMORY, [_memory(canvas, reading.device_used_bytes, peak, state.device.memory_bytes, "")])
        elif reading.host_rss_bytes is not None:
            total = state.host.memory_bytes
            yield fixed(MEMORY, [_memory(canvas, reading.host_rss_bytes, peak, total, "used by the worker")])
        if load := list(_load(reading)):
            label = canvas.label("device" if reading.device_utilisation is not None else "host")
            yield fixed(SENSORS, [label.append_text(canvas.join(load, canvas.width - label.cell_len))])

    def _boards(self, canvas: Canvas) -> Iterator[Slot]:
        if varying := differing_axes(self.state.planned):
            for quantity in self.quantities():
                draw = partial(board, canvas, self.state, quantity, varying)
                if lines := draw(MAX_BOARD_ROWS):
                    headings = len(draw(1)) - 1
                    yield Slot(
                        BOARD,
                        lambda height, draw=draw, headings=headings: draw(height - headings),  # type: ignore[misc]
                        min(len(lines), headings + MIN_BOARD_ROWS),
                        len(lines),
                        gap=True,
                    )


class LinesOnly(CellScreen[RunState[CellState]]):
    """Progress of commands whose cells are too short for a dashboard."""

    is_drawn = False

    @classmethod
    def label(cls, cell: Any, state: Any) -> str:
        """Return the title of the cell."""
        return str(cell.cell.title)


@memoized
def differing_axes(planned: Any) -> tuple[str, ...]:
    """Return the axes in which the cells of a run differ."""
    return axes.varying([each.cell for each in planned.values()])


def stacked(slots: Sequence[Slot], height: int) -> list[Text]:
    """Return the lines of the slots that fit, from top to bottom.

    The most important slots get the lines that they need, then the lines that they can use.
    """
    by_importance = sorted((slot for slot in slots if slot.least), key=lambda slot: slot.importance)
    heights: dict[int, int] = {}
    spare = height
    for slot in by_importance:
        needed = slot.least + (slot.gap and slot.most > slot.least)
        if needed <= spare:
            heights[id(slot)] = slot.least
            spare -= needed
    spare -= sum(slot.gap for slot in slots if id(slot) in heights and slot.most == slot.least)
    for slot in by_importance:
        if id(slot) in heights and spare > 0:
            more = min(slot.most - heights[id(slot)], spare)
            heights[id(slot)] += more
            spare -= more
    shown = [(slot, list(slot.lines(heights[id(slot)]))) for slot in slots if id(slot) in heights]
    empty = height - sum(len(lines) for _, lines in shown)
    stack: list[Text] = []
    for slot, lines in shown:
        if slot.gap and stack and lines and empty > 0:
            stack.append(Text())
            empty -= 1
        stack += lines
    return stack[:height]


def _progress_line(canvas: Canvas, name: str, progress: Progress) -> Text:
    texts = [piece for piece in progress.texts if piece[0]]
    if canvas.width < MIN_LABEL_WIDTH and progress.total:
        return canvas.join(texts, separator=" ")
    label = Text().append_text(canvas.join([(name, theme.ACCENT)])).append(" ")
    after = canvas.join(texts, max(0, canvas.width - label.cell_len), "   ")
    return canvas.after_bar(label, progress.completed, progress.total, MAX_PROGRESS_WIDTH, after)


def _memory(canvas: Canvas, used: int, peak: int | None, total: int | None, what: str) -> Text:
    scale = units.shared_scale("bytes", [total or used])
    of_total = f" of {scale.digits(total, 1)}" if total else ""
    pieces = [(f"{scale.digits(used, 1)}{of_total} {scale.symbol} {what}".rstrip(), "")]
    pieces += [(f"peak {scale.digits(peak, 1)} {scale.symbol}", "")] if peak else []
    label = canvas.label("memory")
    after = canvas.join(pieces, canvas.width - label.cell_len)
    style = theme.BAD if used > 0.95 * (total or used) else "cyan"
    return canvas.after_bar(label, used, total or 0, MAX_MEMORY_WIDTH, after, style)


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
