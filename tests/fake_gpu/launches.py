"""What the real dispatcher launches in each phase of a step, against the trace that predictions are made from.

    python -m tests.fake_gpu.launches '[{"size": "tiny", "ctx": 128}, …]'

is run with the fake GPU (`compare` does that) and writes one JSON object for each configuration.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any

from tests.fake_gpu.fake import FakeGpu, forget, report_so_far

Axes = Mapping[str, Any]
"""Options of `sysbench time` that say what one step is."""

TO_AND_FROM_HOST = ("Memcpy HtoD", "Memcpy DtoH")
WARM_STEPS = 2
TIMED_STEPS = 5


@dataclass(frozen=True)
class PhaseLaunches:
    """One phase of a configuration.

    real, traced   work launched: kernels, and copies and sets within the device; matrix products by themselves, and
                   kernels that the compiler has generated, by name
    host_s         what the real dispatcher needed to issue the phase, launches to the fake GPU included
    operators, views, scalars  what the trace says the host issues
    """

    name: str
    real: int
    traced: int
    real_products: int
    traced_products: int
    real_generated: Mapping[str, int]
    traced_generated: Mapping[str, int]
    host_s: float
    operators: int
    views: int
    scalars: int

    @property
    def agrees(self) -> bool:
        """Whether the trace has as many launches, and as many matrix products, as there were."""
        alike = self.real_generated == self.traced_generated
        return alike and (self.real, self.real_products) == (self.traced, self.traced_products)


def compare(gpu: FakeGpu, configurations: Iterable[Axes], **options: Any) -> Iterator[tuple[Axes, list[PhaseLaunches]]]:
    """Run the configurations in one process with the fake GPU."""
    wanted = list(configurations)
    ran = gpu.run(sys.executable, "-m", __name__, json.dumps(wanted), kernel_us=0, OMP_NUM_THREADS="1", **options)
    assert ran.code == 0, ran.err[-3000:]
    lines = [json.loads(line) for line in ran.out.splitlines() if line.startswith("[")]
    assert len(lines) == len(wanted), ran.err[-3000:]
    for axes, phases in zip(wanted, lines, strict=True):
        yield axes, [PhaseLaunches(**phase) for phase in phases]


def _phases(axes: Axes) -> list[PhaseLaunches]:
    import torch

    from sysbench.commands.time.spec import TimeSpec
    from sysbench.lab.compilation import fresh_compiler
    from sysbench.lab.precision import matmul_precision
    from sysbench.lab.step import TrainingStep
    from sysbench.predict.trace import HOST_WORK
    from sysbench.predict.tracing import trace
    from sysbench.simulate.gpu import Gpu
    from sysbench.spec.hardware import by_name

    (cell,) = TimeSpec(**axes).cells()
    step_cell = cell.step_with(device="cuda")
    real: dict[str, Counter[str]] = {}
    host_s: dict[str, float] = {}
    compiling = fresh_compiler() if step_cell.is_compiled else nullcontext()
    with matmul_precision(step_cell.precision), compiling:
        step = TrainingStep(step_cell, torch.device("cuda", 0))
        for number in range(WARM_STEPS + TIMED_STEPS):
            step.forget()
            real.clear()
            for phase, run in step.phases:
                torch.cuda.synchronize()
                forget()
                started = time.perf_counter()
                run()
                elapsed_s = time.perf_counter() - started
                launched = Counter({each.name: count for each, count in report_so_far().launches.items()})
                real[phase] = real.get(phase, Counter()) + launched
                if number >= WARM_STEPS:
                    host_s[phase] = min(elapsed_s, host_s.get(phase, elapsed_s))
    traced, _ = trace(step_cell, Gpu.of(by_name("h100")))
    found = []
    for phase, launches in real.items():
        parts = [part for part in traced.phases if part.name == phase]
        kinds = Counter(traced.kernels[position].kind for part in parts for position in part.kernels)
        work = Counter(HOST_WORK[position] for part in parts for position in part.host)
        generated = Counter(
            name for part in parts for position in part.kernels if _is_generated(name := traced.kernels[position].name)
        )
        copies = sum(count for name, count in launches.items() if name in TO_AND_FROM_HOST)
        found.append(
            PhaseLaunches(
                phase,
                launches.total() - copies,
                kinds.total(),
                sum(count for name, count in launches.items() if name.startswith("cublas")),
                kinds["gemm"],
                {name: count for name, count in launches.items() if _is_generated(name)},
                dict(generated),
                host_s[phase],
                work["operator"],
                work["view"],
                work["scalar"],
            )
        )
    return found


def _is_generated(name: str) -> bool:
    return name.startswith("triton_")


if __name__ == "__main__":
    for configuration in json.loads(sys.argv[1]):
        print(json.dumps([asdict(phase) for phase in _phases(configuration)]), flush=True)
