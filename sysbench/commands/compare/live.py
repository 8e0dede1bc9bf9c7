"""Progress of `compare --ab`: a line for every round, and on a terminal a line that shows the current cell."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping

from rich.console import Console

from sysbench import units
from sysbench.commands.compare.comparison import Comparison
from sysbench.log.events import CellStarted, Event, RunFinished, RunStarted, WorkerReady
from sysbench.render import theme
from sysbench.statistics.verdict import over_rounds

_CLEARED = "\r\x1b[2K"


class RoundLines:
    """Writes progress lines; a stream that fails (closed pipe, full disk) ends the progress, not the measurement."""

    def __init__(self, console: Console, rounds: int, titles: Mapping[str, str], *, live: bool) -> None:
        """`titles` are cell titles by key; `live` allows a line that is overwritten."""
        self._file, self._encoding = console.file, console.encoding
        self._width = console.width
        self._rounds = rounds
        self._titles = titles
        self._live = live
        self._lost = False
        self._device: str | None = None
        self._ratios: list[float] = []

    def show(self, number: int, arm: str, event: Event) -> None:
        """Update the overwritten line, if there is one."""
        turn = f"round {number} of {self._rounds}, {arm}"
        match event:
            case RunStarted():
                self._here(f"{turn}: starting a fresh process")
            case WorkerReady() if self._device is None and event.devices:
                self._device = f"{event.devices[0].name} · torch {event.torch.torch}"
                self.say(self._device)
            case CellStarted():
                self._here(f"{turn}: {self._titles.get(event.cell, event.cell)}")
            case RunFinished():
                self._here("")
            case _:
                pass

    def round(self, number: int, found: Comparison, elapsed_s: float) -> None:
        """Print the result of a round, the result so far, and the remaining time."""
        times = [time for cell in found.cells for time in cell.times if time.headline]
        words = [f"round {number:>{len(str(self._rounds))}} of {self._rounds}"]
        if times:
            ratio = math.exp(statistics.fmean(math.log(time.ratio) for time in times))
            self._ratios.append(ratio)
            if len(times) == 1:
                words.append(f"{times[0].quantity} A {units.seconds(times[0].a_s)}, B {units.seconds(times[0].b_s)}")
            words += [f"B / A {units.ratio(ratio)}"]
            if len(self._ratios) > 1:
                all_ = over_rounds([1.0] * len(self._ratios), self._ratios)
                interval = (
                    f" ({all_.low:.3f}–{all_.high:.3f})" if all_.low is not None and all_.high is not None else ""
                )
                words.append(f"so far {all_.ratio:.3f}{interval}")
        words += [f"{cell.a_outcome} in A, {cell.b_outcome} in B" for cell in found.cells if not cell.times][:1]
        if number < self._rounds:
            words.append(f"{units.duration(elapsed_s / number * (self._rounds - number))} left")
        self.say("  ".join(word for word in words if word))

    def say(self, text: str) -> None:
        """Print a permanent line."""
        self._write((_CLEARED if self._live else "") + theme.fitted(text, self._encoding) + "\n")

    def _here(self, text: str) -> None:
        if self._live:
            self._write(_CLEARED + theme.elided(theme.fitted(text, self._encoding), self._width - 1))

    def _write(self, text: str) -> None:
        if self._lost:
            return
        try:
            self._file.write(text)
            self._file.flush()
        except OSError:
            self._lost = True
