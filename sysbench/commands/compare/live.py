"""What is seen of a comparison while it is measured: a line for every round, and on a terminal where it is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from rich.console import Console

from sysbench import units
from sysbench.commands.compare.comparison import Comparison, TimeComparison
from sysbench.log.events import CellStarted, Event, RunFinished, RunStarted, WorkerReady
from sysbench.render import theme
from sysbench.statistics.verdict import Judged, over_rounds

_CLEARED = "\r\x1b[2K"


class RoundLines:
    """Writes on a stream; one that is lost (a closed pipe, a full disk) ends the progress, not the measurement."""

    def __init__(self, console: Console, rounds: int, titles: Mapping[str, str], *, live: bool) -> None:
        """`titles` are those of all cells by their keys; `live` allows a line that is written over."""
        self._file, self._encoding = console.file, console.encoding
        self._width = console.width
        self._rounds = rounds
        self._titles = titles
        self._live = live
        self._lost = False
        self._device: str | None = None
        self._ratios: list[float] = []

    def show(self, number: int, arm: str, event: Event) -> None:
        """Say where it is; what is said is written over, and where that is not possible, not said."""
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
        """Say what a round has brought, what all have brought so far, and how long the others will take."""
        times = [time for cell in found.cells for time in cell.times if time.headline]
        words = [f"round {number:>{len(str(self._rounds))}} of {self._rounds}"]
        if times:
            ratio = math.exp(statistics.fmean(math.log(time.ratio) for time in times))
            self._ratios.append(ratio)
            words += [_both(times), f"B / A {units.ratio(ratio)}"]
            if len(self._ratios) > 1:
                words.append(f"so far {_so_far(over_rounds([1.0] * len(self._ratios), self._ratios))}")
        words += [f"{cell.a_outcome} in A, {cell.b_outcome} in B" for cell in found.cells if not cell.times][:1]
        if number < self._rounds:
            words.append(f"{units.duration(elapsed_s / number * (self._rounds - number))} left")
        self.say("  ".join(word for word in words if word))

    def say(self, text: str) -> None:
        """Write one line that stays."""
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


def _both(times: Sequence[TimeComparison]) -> str:
    """Both medians, where there is one of each; of several only their ratio can be said."""
    if len(times) != 1:
        return ""
    (time,) = times
    return f"{time.quantity} A {units.seconds(time.a_s)}, B {units.seconds(time.b_s)}"


def _so_far(judged: Judged) -> str:
    interval = f" ({judged.low:.3f}–{judged.high:.3f})" if judged.low is not None and judged.high is not None else ""
    return f"{judged.ratio:.3f}{interval}"
