"""The dashboard: drawn from events, in the parent, seldom enough not to be noticed by what is measured.

Whoever draws shares the machine's cores with the worker. After every drawing its cost is read from this thread's CPU
clock, and the next one waits until that cost is at most a fixed share of a core: 0.5 % while steps are timed on the
CPU, 1 % while they are timed on a device of its own, 5 % while nothing is timed, and never more than 4 times a second.
There is no thread that draws: a drawing happens when an event arrives, and only then.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from rich.console import Console, ConsoleDimensions, ConsoleOptions, RenderResult
from rich.control import Control
from rich.live import Live
from rich.segment import ControlType, Segment

from sysbench.events import Event
from sysbench.views.screen import Screen, draw
from sysbench.views.state import LiveState, advance

INTERVAL_S = 0.25

CPU_SHARE = 0.005
DEVICE_SHARE = 0.01
IDLE_SHARE = 0.05


@dataclass(frozen=True)
class Clock:
    """The times that a dashboard lives by, all in seconds."""

    epoch: Callable[[], float] = time.time
    """What events are dated with."""
    monotonic: Callable[[], float] = time.monotonic
    thread_cpu: Callable[[], float] = time.thread_time
    """CPU time that this thread has used; what other threads do meanwhile is not the drawing's."""


@dataclass
class Pace:
    """When to draw again, by what the last drawing has cost."""

    clock: Clock
    _drawn_s: float = field(default=float("-inf"))
    _cost_s: float = 0.0

    def due(self, state: LiveState) -> bool:
        """Whether a drawing now stays within its share of a core."""
        return self.clock.monotonic() - self._drawn_s >= max(INTERVAL_S, self._cost_s / share_allowed(state))

    def measure(self, drawing: Callable[[], None]) -> None:
        """Draw, and take down what it has cost."""
        before_s = self.clock.thread_cpu()
        try:
            drawing()
        finally:
            self._cost_s = self.clock.thread_cpu() - before_s
            self._drawn_s = self.clock.monotonic()


def share_allowed(state: LiveState) -> float:
    """The share of a core that drawing may take in this state."""
    if not state.hot:
        return IDLE_SHARE
    return DEVICE_SHARE if state.on_gpu else CPU_SHARE


class Dashboard:
    """Shows a run on a terminal while it goes on, and is gone when it is over."""

    def __init__(self, console: Console, clock: Clock | None = None) -> None:
        self._console = console
        self._clock = clock or Clock()
        self._pace = Pace(self._clock)
        self._state = LiveState()
        self._frame = _Frame(draw(self._state, self._clock.epoch()))
        self._size = console.size
        self._lost = False
        self._live = Live(
            console=console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            vertical_overflow="crop",
            get_renderable=lambda: self._frame,
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self._follow_size()
            self._live.stop()
        except OSError:
            # The terminal is gone, and with it what would have to be cleaned up.
            pass

    def show(self, event: Event) -> None:
        """Take in one event, and draw if it is time to."""
        self._state = advance(self._state, event)
        if not self._lost and self._state.planned and self._pace.due(self._state):
            self._pace.measure(self._draw)

    def _draw(self) -> None:
        try:
            self._follow_size()
            self._frame = _Frame(draw(self._state, self._clock.epoch()))
            self._live.refresh()
        except OSError:
            # A terminal that went away (a closed window, a lost connection) ends the dashboard, not the run.
            self._lost = True

    def _follow_size(self) -> None:
        """After a resize, take away what the terminal has made of the last frame.

        A terminal that became narrower has wrapped the longer lines of the frame, so that it is higher than it was
        drawn. All of it is erased, and the cursor put where Rich expects it: on the frame's last line.
        """
        size, before, self._size = self._console.size, self._size, self._console.size
        if size == before or not self._frame.widths:
            return
        erase_up = ((ControlType.CURSOR_UP, 1), (ControlType.ERASE_IN_LINE, 2))
        rows = min(rows_after(self._frame.widths, size), size.height)
        self._console.control(
            Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2), *(erase_up * (rows - 1)))
        )
        self._console.file.write("\n" * (len(self._frame.widths) - 1))


def rows_after(widths: list[int], size: ConsoleDimensions) -> int:
    """Rows that lines of these widths take once the terminal has wrapped them to a new size."""
    return sum(max(1, -(-width // max(1, size.width))) for width in widths)


@dataclass
class _Frame:
    """A screen that remembers the widths of the lines it was last drawn with."""

    screen: Screen
    widths: list[int] = field(default_factory=list)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = self.screen.lines(console, options)
        self.widths = [Segment.get_line_length(line) for line in lines]
        for line in lines:
            yield from line
            yield Segment.line()
