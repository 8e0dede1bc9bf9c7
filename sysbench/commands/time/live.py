"""A run of `sysbench time` while it goes on: the dashboard, and lines where there is no terminal."""

from __future__ import annotations

from collections.abc import Iterator

from sysbench import cells as axes
from sysbench import units
from sysbench.commands.time.live_state import Done, LiveState, Planned, advance
from sysbench.commands.time.predicted import MARK
from sysbench.commands.time.screen import draw, slow_without_gpu
from sysbench.log.events import CellFinished, Event, RunResumed, WorkerReady
from sysbench.render.dashboard.cell_lines import Lines, resumed_line
from sysbench.render.dashboard.live import CPU_SHARE, DEVICE_SHARE, IDLE_SHARE, Picture


class TimeLines(Lines[LiveState]):
    """A line for what is measured on, one for every cell when it is over, and one where it will take long."""

    blank = LiveState()
    advance = staticmethod(advance)
    _warned = False

    def said(self, event: Event, before: LiveState) -> Iterator[str]:
        """The lines that this event gives reason to write."""
        if isinstance(event, WorkerReady) and not before.devices:
            yield device_line(self.state)
        elif isinstance(event, RunResumed):
            yield resumed_line(event)
        elif isinstance(event, CellFinished):
            yield cell_line(self.state)
        elif not self._warned and (slow := slow_without_gpu(self.state, event.at_s)):
            self._warned = True
            yield f"{slow[0]} → {slow[1]}"


def device_line(state: LiveState) -> str:
    """What is measured on: `NVIDIA H200 · torch 2.13.0`."""
    if state.torch and any(each.cell.simulate for each in state.planned):
        return f"{MARK} · torch {state.torch.torch}"
    name = state.device.name if state.device else "no device"
    if state.device is not None and state.device.type == "cpu" and state.torch:
        default = state.torch.threads
        *others, last = dict.fromkeys(each.cell.threads or default for each in state.planned) or (default,)
        name = f"{name} ({''.join(f'{count}, ' for count in others)}{axes.phrase('threads', last)})"
    return f"{name} · torch {state.torch.torch}" if state.torch else name


def cell_line(state: LiveState) -> str:
    """The cell that finished last: `1/8 small ctx 128 fp32 train  step 105.6 ± 0.2 ms`."""
    done = state.done[-1]
    by_key = {planned.key: planned for planned in state.planned}
    planned = by_key.get(done.key)
    count = f"{len(state.done)}/{len(state.planned)}"
    return f"{count} {_named(planned, state)}  {_result(done)}"


def _named(planned: Planned | None, state: LiveState) -> str:
    if planned is None:
        return "a cell of another run"
    differing = axes.varying([each.cell.model_dump() for each in state.planned])
    always = ("size", "ctx", "precision", "mode", *(("simulate",) if planned.cell.simulate else ()))
    return axes.label(planned.cell.model_dump(), [*always, *(axis for axis in differing if axis not in always)])


def _result(done: Done) -> str:
    if done.outcome == "ok" and done.predicted:
        low, high = units.seconds(done.predicted.low_s), units.seconds(done.predicted.high_s)
        return f"PREDICTED step {units.seconds(done.predicted.point_s)} ({low} to {high})"
    if done.outcome == "ok" and done.step:
        return f"step {units.seconds_with_deviation(*done.step)}"
    return f"{done.outcome}: {done.detail}" if done.detail else done.outcome


def share_allowed(state: LiveState) -> float:
    """The share of a core that drawing may take in this state."""
    if not state.hot:
        return IDLE_SHARE
    return DEVICE_SHARE if state.on_gpu else CPU_SHARE


TIME = Picture(LiveState(), advance, draw, share_allowed)
