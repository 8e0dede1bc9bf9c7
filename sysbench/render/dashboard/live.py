"""The dashboard: drawn from events, in the parent, seldom enough not to be noticed by what is measured.

Whoever draws shares the machine's cores with the worker. After every drawing its cost is read from this thread's CPU
clock, and the next one waits until that cost is at most a fixed share of a core: 0.5 % while steps are timed on the
CPU, 1 % while they are timed on a device of its own, 5 % while nothing is timed, and never more than 4 times a second.
There is no thread that draws: a drawing happens when an event arrives, and only then.

It has the terminal's alternate screen to itself: a resize leaves no torn frames behind, neither on the screen nor in
what one scrolls back to, and when it is over the terminal is as it was.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, redirect_stderr
from dataclasses import dataclass, field
from functools import reduce
from types import TracebackType
from typing import IO, Any, Generic, Self, TypeVar

from rich.console import Console, RenderableType
from rich.live import Live

from sysbench.log.events import Event
from sysbench.render.dashboard.overall import Above, Overall

INTERVAL_S = 0.25

CPU_SHARE = 0.005
DEVICE_SHARE = 0.01
IDLE_SHARE = 0.05


def can_draw_on(console: Console) -> bool:
    """Whether it takes a dashboard: a terminal that can move its cursor.

    Rich also calls a terminal what FORCE_COLOR says is one; a log file that may have colours has no cursor.
    """
    return console.file.isatty() and not console.is_dumb_terminal


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

    def due(self, share: float, *, torn: bool = False) -> bool:
        """Whether a drawing now stays within its share of a core; a `torn` picture is mended at once, or almost."""
        wait_s = 0.0 if torn else self._cost_s / share
        return self.clock.monotonic() - self._drawn_s >= max(INTERVAL_S, wait_s)

    def measure(self, drawing: Callable[[], None]) -> None:
        """Draw, and take down what it has cost."""
        before_s = self.clock.thread_cpu()
        try:
            drawing()
        finally:
            self._cost_s = self.clock.thread_cpu() - before_s
            self._drawn_s = self.clock.monotonic()


State = TypeVar("State")


@dataclass(frozen=True)
class Picture(Generic[State]):
    """What a kind of run looks like while it goes on."""

    blank: State
    advance: Callable[[State, Event], State]
    """The state after one more event; pure."""
    draw: Callable[[State, float], RenderableType]
    """The state at a time in seconds since the epoch, as high and as wide as there is room."""
    share: Callable[[State], float]
    """The share of a core that drawing may take in this state."""


class Dashboard:
    """Shows a run on a terminal while it goes on, and is gone when it is over.

    What is written to stderr meanwhile is kept back, and written when the terminal is free again. `earlier` are the
    events of the log that a resumed run continues, `overall` the experiment that the run is of.
    """

    def __init__(
        self,
        console: Console,
        clock: Clock | None = None,
        *,
        picture: Picture[Any],
        earlier: Iterable[Event] = (),
        overall: Overall | None = None,
    ) -> None:
        self._console = console
        self._clock = clock or Clock()
        self._pace = Pace(self._clock)
        self._picture = picture
        self._overall = overall
        self._state = reduce(picture.advance, earlier, picture.blank)
        self._size = console.size
        self._lost = False
        self._held = _HeldBack(console.file)
        self._open = ExitStack()
        self._live = Live(
            console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )

    def __enter__(self) -> Self:
        self._open.enter_context(redirect_stderr(self._held))
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            # Some terminals keep part of the alternate screen when they were resized meanwhile: let it be empty.
            self._console.clear()
            self._live.stop()
        except OSError:
            self._lost = True
        self._open.close()
        if said := self._held.getvalue():
            sys.stderr.write(said)

    def show(self, event: Event) -> None:
        """Take in one event, and draw if it is time to."""
        self._state = self._picture.advance(self._state, event)
        if self._overall is not None:
            self._overall.take_in(event)
        share = self._picture.share(self._state)
        if not self._lost and self._pace.due(share, torn=self._console.size != self._size):
            self._pace.measure(self._draw)

    def _draw(self) -> None:
        self._size = self._console.size
        now_s = self._clock.epoch()
        screen = self._picture.draw(self._state, now_s)
        try:
            self._live.update(Above(self._overall, screen, now_s) if self._overall else screen, refresh=True)
        except OSError:
            # A terminal that went away (a closed window, a lost connection) ends the dashboard, not the run.
            self._lost = True


class _HeldBack(io.StringIO):
    """Takes what is written to stderr, while Rich goes on writing to the terminal behind it."""

    def __init__(self, terminal: IO[str]) -> None:
        super().__init__()
        self.rich_proxied_file = terminal
