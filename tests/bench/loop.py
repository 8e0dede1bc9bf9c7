"""What measuring a step in its own process costs: `sysbench.measure` and `sysbench.record` against a bare loop.

python -m tests.bench.loop [--steps 500] [--width 512]

Every measured step is followed by the same step with nothing but a clock around it, so that whatever else the machine
does hits both alike. `measure` is promised to be within 0.5% of the bare step: its own work is done between steps.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from statistics import median, quantiles

import torch

import sysbench
from sysbench.log.events import Event, StepMeasured

PROMISED_SHARE = 0.005

Phase = Callable[[str], AbstractContextManager[object]]


def step_of(width: int) -> Callable[[Phase], None]:
    """A training step of a small network on the CPU."""
    model = torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.GELU(), torch.nn.Linear(width, width))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = torch.randn(256, width)

    def step(phase: Phase) -> None:
        with phase("forward"):
            loss = model(inputs).square().mean()
        with phase("backward"):
            loss.backward()
        with phase("optimizer"):
            optimizer.step()
            optimizer.zero_grad()

    return step


def bare_s(step: Callable[[Phase], None]) -> float:
    """The time of a step around which there is nothing but a clock."""
    began_s = time.perf_counter()
    step(nullcontext)
    return time.perf_counter() - began_s


def measured(step: Callable[[Phase], None], steps: int) -> Iterator[tuple[float, float]]:
    """Pairs of times: of `sysbench.measure`, and of the bare step after it."""
    bare: list[float] = []

    def after(event: Event) -> None:
        if isinstance(event, StepMeasured) and not event.warmup:
            bare.append(bare_s(step))

    run = sysbench.measure(lambda: step(sysbench.phase), steps=steps, device="cpu", progress=after)
    yield from zip(run.cells[0].phases["step"].wall.samples_s, bare, strict=True)


def recorded(step: Callable[[Phase], None], steps: int) -> Iterator[tuple[float, float]]:
    """Pairs of times: the phases of `sysbench.record` added up, and the bare step after them."""
    bare: list[float] = []
    with sysbench.record(warmup=0, max_steps=steps, device="cpu") as recording:
        for _ in range(steps):
            step(sysbench.phase)
            bare.append(bare_s(step))
            sysbench.step()
    assert recording.run is not None
    phases = [found.wall.samples_s for name, found in recording.run.cells[0].phases.items() if name != "step"]
    yield from zip(map(sum, zip(*phases, strict=True)), bare, strict=True)


def main() -> None:
    """Print the median ratio of the pairs, and the ratios of the medians and of the fastest steps."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("steps", 500), ("width", 512)):
        options.add_argument(f"--{name}", type=int, default=default)
    given = options.parse_args()
    step = step_of(given.width)
    for way in (measured, recorded):
        pairs = list(way(step, given.steps))
        ours, bare = zip(*pairs, strict=True)
        share = median(one / other for one, other in pairs) - 1
        fastest = quantiles(ours, n=20)[0] / quantiles(bare, n=20)[0] - 1
        print(
            f"{way.__name__:9} bare {median(bare) * 1e3:.3f} ms   pairs {share:+.2%}   medians "
            f"{median(ours) / median(bare) - 1:+.2%}   fastest in twenty {fastest:+.2%}   "
            f"within {PROMISED_SHARE:.1%}: {'yes' if abs(share) <= PROMISED_SHARE else 'no'}"
        )


if __name__ == "__main__":
    main()
