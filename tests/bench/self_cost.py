"""How much each part of sysbench slows down a step: the dashboard, the sampler and the allocator's history.

    python -m tests.bench.self_cost [--rounds 6] [--device cuda:0] [--json]

A round runs every arm once, each in a fresh worker, and the next round runs them in the opposite order (A B C C B A …),
so that drift affects all arms equally. Each round yields the ratio of the median step times with and without a part.
The result is the median of these ratios over the rounds, with a confidence interval, which needs six rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Protocol

from rich.console import Console

from sysbench import bootstrap
from sysbench.commands.doctor.examination import ChildProcess, Examination, NoAnswerError
from sysbench.commands.time.live import TimeScreen
from sysbench.commands.time.spec import TimeCell, TimeSpec
from sysbench.engine import session
from sysbench.engine.process import Launcher
from sysbench.engine.provisions import Surroundings
from sysbench.engine.sensors.sampler import Sampler
from sysbench.errors import SysbenchError
from sysbench.log.events import CellFinished, DeviceInfo, Event, Reading, ReadingsLost, RunFinished, StepMeasured
from sysbench.render.dashboard.live import Dashboard
from sysbench.spec.run import RunOptions
from sysbench.statistics import ratio

SPEC = TimeSpec(
    d_model=(64,),
    d_ff=(128,),
    layers=(2,),
    heads=(2,),
    vocab=(100,),
    ctx=(32,),
    batch=(1,),
    warmup=(20,),
    steps=(300,),
)
"""A launch-bound step of a few milliseconds, which is the most sensitive to disturbances."""

RECORDED_STEPS_TIMEOUT_S = 300.0
"""Time limit for one measurement with or without the allocator's history."""

EXPLANATIONS = {
    "dashboard": "drawn at 120 × 40 while steps are measured",
    "sampler": "memory, load and the GPU driver, read ten times a second",
    "history": "every allocation with its stack, recorded only by `sysbench memory`",
}

NO_HISTORY = "only the CUDA allocator records a history; on this device tensors are counted in untimed steps"


@dataclass(frozen=True)
class CostArm:
    """How much one part of sysbench slows down a step."""

    part: str
    """dashboard, sampler or history."""
    with_s: list[float]
    """Median step time with the part, by round."""
    without_s: list[float]
    """Median step time without the part, in the same rounds."""
    ratio: float
    """Median over the rounds of the ratio with / without."""
    ratio_low: float | None
    """95% confidence interval of the ratio; None with fewer than six rounds."""
    ratio_high: float | None

    def __str__(self) -> str:
        change = f"{self.part:10}  {_percent(self.ratio)} of a step"
        if self.ratio_low is None or self.ratio_high is None:
            return f"{change} (too few rounds for an interval): {EXPLANATIONS[self.part]}"
        verdict = "" if self.ratio_low > 1 or self.ratio_high < 1 else ", not significant"
        interval = f"{_percent(self.ratio_low)} to {_percent(self.ratio_high)}"
        return f"{change} (95%: {interval}){verdict}: {EXPLANATIONS[self.part]}"


@dataclass(frozen=True)
class SelfCost:
    """How much sysbench itself slows down a step on this machine."""

    device: str
    workload: str
    rounds: int
    took_s: float
    arms: list[CostArm]
    not_measured: dict[str, str] = field(default_factory=dict)
    """Parts that could not be measured, and why."""


def _percent(ratio: float) -> str:
    return f"{(ratio - 1) * 100:+.2f}%"


class EventListener(Protocol):
    """Receives the events of a run."""

    def show(self, event: Event) -> None:
        """Process one event."""


DashboardFactory = Callable[[], AbstractContextManager[EventListener]]
Arm = Callable[[], float]
"""Function that measures an arm once in a fresh process, and returns the median step time in seconds."""


class NoSampler(Sampler):
    """A sampler that reads nothing."""

    interval_s = float("inf")
    driver: str | None = None

    def watch(self, *pids: int) -> None:
        """Ignore the processes."""

    def use(self, device: DeviceInfo | None, others: Sequence[DeviceInfo] = ()) -> None:
        """Ignore the devices."""

    def read(self, at_s: float) -> Reading:
        """Return an empty reading."""
        return Reading(at_s=at_s)

    def failures(self) -> list[ReadingsLost]:
        """Return an empty list: this sampler never fails."""
        return []

    def count_other_processes(self) -> int | None:
        """Return None: the number is unknown."""
        return None

    def free_bytes(self, device: DeviceInfo) -> int | None:
        """Return None: the free memory is unknown."""
        return None

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


def measure(
    device: DeviceInfo,
    rounds: int,
    dashboard: DashboardFactory,
    report_progress: Callable[[int, int], None],
    spec: TimeSpec = SPEC,
    launcher: Launcher | None = None,
) -> SelfCost:
    """Measure the overhead of every part.

    `report_progress` receives the number of finished measurements and their total. If a step cannot be
    measured, the result contains the reason. Raises KeyboardInterrupt if the user interrupts.
    """
    began_s = time.monotonic()
    # On a CPU, one thread: several wait for each other whenever another process runs, which would hide the overhead.
    choices = {"device": (device.torch_name,)} | ({"threads": (1,)} if device.type == "cpu" else {})
    (cell,) = (device_spec := spec.model_copy(update=choices)).cells()
    arms: dict[str, Arm] = {
        "bare": lambda: _median_step_s(device_spec, NoSampler(), _no_dashboard, launcher),
        "sampler": lambda: _median_step_s(device_spec, Sampler(), _no_dashboard, launcher),
        "dashboard": lambda: _median_step_s(device_spec, NoSampler(), dashboard, launcher),
    }
    baselines = {"dashboard": "bare", "sampler": "bare"}
    not_measured = {"history": NO_HISTORY}
    if device.type == "cuda":
        arms |= {"unrecorded": lambda: _recorded_step_s(cell, "off"), "history": lambda: _recorded_step_s(cell, "on")}
        baselines["history"] = "unrecorded"
        not_measured = {}
    workload = f"a {cell.mode} step"
    try:
        medians_s = measure_alternating(arms, rounds, report_progress)
    except SysbenchError as error:
        baselines, not_measured = {}, dict.fromkeys(baselines, str(error)) | not_measured
    else:
        workload += f" of {median(medians_s['bare']) * 1e3:.2f} ms"
    return SelfCost(
        device=device.name,
        workload=workload,
        rounds=rounds,
        took_s=time.monotonic() - began_s,
        arms=[cost_arm(part, medians_s[part], medians_s[other]) for part, other in baselines.items()],
        not_measured=not_measured,
    )


def measure_alternating(
    arms: Mapping[str, Arm], rounds: int, report_progress: Callable[[int, int], None]
) -> dict[str, list[float]]:
    """Measure every arm once per round, reversing the order after each round."""
    measured: dict[str, list[float]] = {name: [] for name in arms}
    order = list(arms)
    for number in range(rounds):
        for position, name in enumerate(order):
            report_progress(number * len(order) + position, rounds * len(order))
            measured[name].append(arms[name]())
        order.reverse()
    return measured


def cost_arm(part: str, with_s: list[float], without_s: list[float]) -> CostArm:
    """Return the overhead of a part, computed from one ratio per round, so that drift between rounds cancels out."""
    overhead = ratio(
        [with_part / without_part for with_part, without_part in zip(with_s, without_s, strict=True)],
        [1.0] * len(with_s),
    )
    return CostArm(
        part=part,
        with_s=with_s,
        without_s=without_s,
        ratio=overhead.value,
        ratio_low=overhead.low,
        ratio_high=overhead.high,
    )


class _NullListener:
    def show(self, event: Event) -> None:
        pass


def _no_dashboard() -> AbstractContextManager[EventListener]:
    return nullcontext(_NullListener())


def _median_step_s(spec: TimeSpec, sampler: Sampler, dashboard: DashboardFactory, launcher: Launcher | None) -> float:
    with TemporaryDirectory(prefix="sysbench-") as directory:
        options, surroundings = RunOptions(out=Path(directory), quiet=True), Surroundings(ceilings=False)
        run = session.run(spec, options, launcher=launcher, sampler=sampler, surroundings=surroundings)
        with run as running, dashboard() as listener:
            samples_s = []
            for event in running:
                listener.show(event)
                if isinstance(event, StepMeasured) and not event.warmup and event.step.wall_s is not None:
                    samples_s.append(event.step.wall_s)
                if isinstance(event, CellFinished) and event.outcome not in ("ok", "interrupted"):
                    raise SysbenchError(f"{event.outcome}: {event.detail or 'no reason given'}")
                if isinstance(event, RunFinished) and event.status == "interrupted":
                    raise KeyboardInterrupt
            if not samples_s:
                raise SysbenchError("no step was measured")
            return median(samples_s)


def _recorded_step_s(cell: TimeCell, history: str) -> float:
    command = [*bootstrap.command("tests.bench.recorded_steps"), cell.model_dump_json(), history]
    child = ChildProcess(command, RECORDED_STEPS_TIMEOUT_S, bootstrap.environment())
    try:
        samples_s: list[float] = json.loads(child.answer())
    except NoAnswerError as error:
        raise SysbenchError(f"steps with allocator history could not be measured: {error}") from None
    finally:
        child.close()
    return median(samples_s)


@contextmanager
def discarded_dashboard() -> Iterator[EventListener]:
    """Yield a dashboard of `sysbench time` that renders to a 120 × 40 terminal and discards the output."""
    with (
        Path(os.devnull).open("w", encoding="utf-8") as devnull,
        Dashboard(Console(file=devnull, force_terminal=True, width=120, height=40), view=TimeScreen) as dashboard,
    ):
        yield dashboard


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--device", help="by default the one that `--device auto` selects")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with Examination() as examination:
        devices = examination.torch().devices
    device = next(each for each in devices if options.device in (None, each.torch_name))
    cost = measure(device, max(2, options.rounds), discarded_dashboard, lambda done, of: None)
    if options.json:
        print(json.dumps(asdict(cost)))
        return
    print(f"{cost.workload} on {cost.device}, {cost.rounds} rounds, {cost.took_s:.0f} s")
    print(*cost.arms, sep="\n")
    print(*(f"{part:10}  not measured: {why}" for part, why in cost.not_measured.items()), sep="\n")


if __name__ == "__main__":
    main()
