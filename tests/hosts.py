"""Machines that runs of the tests say they ran on, and how such a run begins."""

from __future__ import annotations

from sysbench.log.events import HostInfo, RunStarted
from sysbench.spec.cell import RunSpec

GIB = 2**30

MADE_UP = HostInfo(
    hostname="here",
    platform="made up",
    python="3.11.0",
    cpu="Made-up CPU",
    physical_cores=1,
    logical_cores=2,
    memory_bytes=GIB,
    container=False,
    commit=None,
)

BENCH = MADE_UP.model_copy(
    update={
        "hostname": "bench",
        "platform": "Linux-6.8.0-x86_64",
        "python": "3.11.9",
        "cpu": "AMD EPYC 7763 64-Core Processor",
        "physical_cores": 64,
        "logical_cores": 128,
        "memory_bytes": 512 * GIB,
    }
)


def run_started(spec: RunSpec, *, at_s: float = 0.0, host: HostInfo = MADE_UP, driver: str | None = None) -> RunStarted:
    """The first event of a run of this spec."""
    return RunStarted(
        at_s=at_s,
        kind=spec.kind,
        sysbench_version="0.1.0",
        source_digest="0" * 16,
        spec=spec.model_dump(mode="json"),
        host=host,
        driver=driver,
        cells=len(list(spec.cells())),
    )
