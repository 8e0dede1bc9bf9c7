"""Progress of a timing run: the dashboard, and lines where there is no terminal."""

from __future__ import annotations

from collections.abc import Iterator

from sysbench import cells as axes
from sysbench import units
from sysbench.commands.time.live_state import LiveState, TimedCell, advance
from sysbench.commands.time.screen import Screen, slow_without_gpu
from sysbench.log.events import Event, WorkerReady
from sysbench.log.predictions import MARK
from sysbench.render.dashboard.cell_lines import CellLines, label
from sysbench.render.dashboard.cell_screen import ALWAYS
from sysbench.render.dashboard.live import CPU_SHARE, DEVICE_SHARE, IDLE_SHARE, Picture


class TimeLines(CellLines):
    """Lines for the device, for each finished cell, and for a run that will take long without a GPU."""

    blank = LiveState()
    advance = staticmethod(advance)
    _warned = False

    def said(self, event: Event, before: LiveState) -> Iterator[str]:
        """Yield the lines for this event."""
        if isinstance(event, WorkerReady) and not before.devices:
            yield device_line(self.state)
            return
        yield from super().said(event, before)
        if not self._warned and (slow := slow_without_gpu(self.state, event.at_s)):
            self._warned = True
            yield f"{slow[0]} → {slow[1]}"

    def named(self, cell: TimedCell) -> str:
        """Label of the cell within its run, with its simulated GPU."""
        return label(cell, self.state, (*ALWAYS, *(("simulate",) if cell.cell.simulate else ())))

    @staticmethod
    def result(cell: TimedCell) -> str:
        """Outcome of a cell: `step 105.6 ± 0.2 ms`."""
        if cell.outcome == "ok" and cell.predicted:
            low, high = units.seconds(cell.predicted.low_s), units.seconds(cell.predicted.high_s)
            return f"PREDICTED step {units.seconds(cell.predicted.point_s)} ({low} to {high})"
        if cell.outcome == "ok" and cell.step:
            return f"step {units.seconds_with_deviation(*cell.step)}"
        return CellLines.result(cell)


def device_line(state: LiveState) -> str:
    """Name the device and torch: `NVIDIA H200 · torch 2.13.0`."""
    torch, device = state.torch, state.device
    name = device.name if device else "no device"
    if any(each.cell.simulate for each in state.planned.values()):
        name = MARK
    elif device is not None and device.type == "cpu" and torch:
        counts = dict.fromkeys(each.cell.threads or torch.threads for each in state.planned.values())
        *others, last = counts or (torch.threads,)
        name = f"{name} ({''.join(f'{count}, ' for count in others)}{axes.phrase('threads', last)})"
    return f"{name} · torch {torch.torch}" if torch else name


def share_allowed(state: LiveState) -> float:
    """Return the share of a core that drawing may use in this state."""
    if not state.hot:
        return IDLE_SHARE
    return DEVICE_SHARE if state.on_gpu else CPU_SHARE


TIME = Picture(LiveState(), advance, Screen, share_allowed)
