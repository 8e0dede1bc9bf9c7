"""The dashboard: drawn from events in the parent process, rarely enough not to affect the measurement.

Drawing competes with the worker for the machine's cores. Therefore the CPU time of every drawing is measured, and the
next drawing waits until this time is at most a fixed share of the time elapsed: 0.5% while steps are timed on the CPU,
1% while they are timed on another device, 5% while nothing is timed. There are at most 4 drawings per second. There
is no drawing thread: drawing happens only when an event arrives.

The alternate screen of the terminal leaves no torn frames after a resize, and restores the content at the end.
"""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, redirect_stderr
from dataclasses import dataclass, field
from functools import reduce
from types import TracebackType
from typing import IO, Self

from rich.console import Console
from rich.live import Live

from sysbench.log.events import Event
from sysbench.render.dashboard.experiment_progress import ExperimentProgress
from sysbench.render.dashboard.progress import Progress
from sysbench.render.dashboard.run_state import RunState
from sysbench.render.dashboard.screen import CellScreen

INTERVAL_S = 0.25

CPU_SHARE = 0.005
DEVICE_SHARE = 0.01
IDLE_SHARE = 0.05


def can_draw_on(console: Console) -> bool:
    """Whether the console is a terminal that can move its cursor and that a person reads, which no CI system is.

    With FORCE_COLOR, Rich takes any stream for a terminal. CI systems set CI, and give some jobs a terminal.
    """
    is_read_later = os.environ.get("CI", "").lower() not in ("", "0", "false")
    return console.file.isatty() and not console.is_dumb_terminal and not is_read_later


@dataclass(frozen=True)
class Clock:
    """The clocks of a dashboard, all in seconds."""

    epoch: Callable[[], float] = time.time
    """Clock of event timestamps."""
    monotonic: Callable[[], float] = time.monotonic
    thread_cpu: Callable[[], float] = time.thread_time
    """CPU time of this thread, which excludes the work of other threads."""


@dataclass
class DrawThrottle:
    """Decides when to draw again, based on the cost of the last drawing."""

    clock: Clock
    _drawn_s: float = field(default=float("-inf"))
    _cost_s: float = 0.0

    def due(self, share: float, *, resized: bool = False) -> bool:
        """Whether a drawing is due, given the share of a core that drawing may use, unless the terminal was resized."""
        wait_s = 0.0 if resized else self._cost_s / share
        return self.clock.monotonic() - self._drawn_s >= max(INTERVAL_S, wait_s)

    def measure(self, drawing: Callable[[], None]) -> None:
        """Call `drawing`, and record its cost."""
        before_s = self.clock.thread_cpu()
        try:
            drawing()
        finally:
            self._cost_s = self.clock.thread_cpu() - before_s
            self._drawn_s = self.clock.monotonic()


def core_share(view: type[CellScreen], state: RunState) -> float:
    """Return the share of a core that drawing may use."""
    if not (view.times_steps and state.is_timing):
        return IDLE_SHARE
    return DEVICE_SHARE if state.on_gpu else CPU_SHARE


class Dashboard(Progress):
    """Live display of a run on a terminal, which holds back output to stderr until its end.

    `earlier` are the events in the log of a resumed run; `overall` is the progress of its experiment.
    """

    def __init__(
        self,
        console: Console,
        clock: Clock | None = None,
        *,
        view: type[CellScreen],
        earlier: Iterable[Event] = (),
        overall: ExperimentProgress | None = None,
    ) -> None:
        super().__init__()
        self._console = console
        self._clock = clock or Clock()
        self._throttle = DrawThrottle(self._clock)
        self._view = view
        self._overall = overall
        self._state = reduce(view.advance, earlier, view.initial)
        self._size = console.size
        self._is_broken = False
        self._deferred_stderr = _DeferredOutput(console.file)
        self._exit_stack = ExitStack()
        self._live = Live(
            console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )

    def __enter__(self) -> Self:
        self._exit_stack.enter_context(redirect_stderr(self._deferred_stderr))
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            # Some terminals keep part of the alternate screen after a resize, so it is cleared.
            self._console.clear()
            self._live.stop()
        except OSError:
            self._is_broken = True
        self._exit_stack.close()
        if stderr_text := self._deferred_stderr.getvalue():
            sys.stderr.write(stderr_text)

    def show(self, event: Event) -> None:
        """Process one event, and redraw if a drawing is due."""
        self._state = self._view.advance(self._state, event)
        if self._overall is not None:
            self._overall.update(event)
        share = core_share(self._view, self._state)
        if not self._is_broken and self._throttle.due(share, resized=self._console.size != self._size):
            self._throttle.measure(self._draw)

    def _draw(self) -> None:
        self._size = self._console.size
        screen = self._view(self._state, self._clock.epoch(), self._overall)
        try:
            self._live.update(screen, refresh=True)
        except OSError:
            self._is_broken = True  # the terminal has gone away; the run continues


class _DeferredOutput(io.StringIO):
    """Replacement for stderr that keeps all output; Rich bypasses it through `rich_proxied_file`."""

    def __init__(self, terminal: IO[str]) -> None:
        super().__init__()
        self.rich_proxied_file = terminal
