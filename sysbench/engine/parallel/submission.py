"""Submission of cells to a pool, in groups called shards, and collection of their events."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from sysbench.engine.conversation import StoppedByUserError
from sysbench.engine.interrupts import Interrupts
from sysbench.engine.parallel.pools import Job, Pool, Shard
from sysbench.log.events import CellFinished, CellStarted, Event, RunFinished, RunStarted
from sysbench.package import source_digest
from sysbench.spec.cell import RunCell, RunSpec
from sysbench.spec.run import RunOptions

POLL_S = 0.2

SHARDS_PER_SLOT = 4
"""Number of shards of simulated cells per parallel slot: with more, more workers start; with fewer, slots end at
different times.
"""

LARGEST_SHARD = 256
"""Maximum number of simulated cells in a shard. Starting a worker takes as long as 100 simulated attention cells."""


@dataclass
class ParallelExecutor:
    """Submits cells in shards, and yields the events of each shard when it has ended."""

    pool: Pool
    interrupts: Interrupts
    spec: RunSpec
    options: RunOptions
    _handed_over: list[tuple[set[str], Job]] = field(default_factory=list)
    """Submitted shards that have not ended, each with the keys of its cells."""
    _positions: dict[str, int] = field(default_factory=dict)

    def run(self, cells: Sequence[tuple[int, RunCell]]) -> Iterator[Event]:
        """Run these cells, each given with its position in the run, and yield their events."""
        self._positions = {cell.key: position for position, cell in cells}
        groups = self._groups([cell for _, cell in cells])
        jobs = self.pool.start(self._shards(groups))
        self._handed_over = [({cell.key for cell in group}, job) for group, job in zip(groups, jobs, strict=True)]
        while self._handed_over:
            if self.interrupts.requested:
                raise StoppedByUserError
            ended = [each for each in self._handed_over if each[1].done()]
            for each in ended:
                self._handed_over.remove(each)
                yield from self._finished(*each)
            if not ended:
                self.interrupts.sleep(POLL_S)
                self.interrupts.drain()
        self.pool.close()

    def stop(self) -> list[Event]:
        """Stop all shards, and return the events of the cells that are already finished."""
        found: list[Event] = []
        for _, job in self._handed_over:
            with suppress(Exception):  # it may have ended by itself, or its machine may be gone
                job.stop()
        for _, job in self._handed_over:
            with suppress(Exception):
                found += self._of_finished_cells(job.events())
        self._handed_over = []
        with suppress(Exception):
            self.pool.close()
        return found

    def _groups(self, cells: Sequence[RunCell]) -> list[list[RunCell]]:
        """Divide cells into shards: simulated cells in groups, and each measured cell alone."""
        simulated = [cell for cell in cells if cell.simulated]
        size = min(LARGEST_SHARD, math.ceil(len(simulated) / (SHARDS_PER_SLOT * self.pool.slots)))
        groups = [simulated[first : first + size] for first in range(0, len(simulated), size or 1)]
        return groups + [[cell] for cell in cells if not cell.simulated]

    def _shards(self, groups: Sequence[Sequence[RunCell]]) -> list[Shard]:
        spec = self.spec.model_dump(mode="json")
        options = self.options.model_dump(include={"timeout_s", "force"})
        return [
            Shard(
                spec=spec,
                cells=tuple(cell.model_dump(mode="json") for cell in group),
                options=options,
                digest=source_digest(),
                device=group[0].device,
                gpus=0 if group[0].simulated or group[0].device == "cpu" else group[0].workers,
                simulated=group[0].simulated is not None,
            )
            for group in groups
        ]

    def _finished(self, unfinished: set[str], job: Job) -> Iterator[Event]:
        for event in self._of_finished_cells(job.events()):
            yield event
            if isinstance(event, CellFinished):
                unfinished.discard(event.cell)
        for key in sorted(unfinished, key=self._positions.__getitem__):
            outcome, why = job.failure()
            yield CellFinished(at_s=time.time(), cell=key, outcome=outcome, detail=why)

    def _of_finished_cells(self, events: Sequence[Event]) -> Iterator[Event]:
        """Yield the events of a shard for the run's log: those of finished cells, and those not tied to a cell."""
        finished = {
            event.cell for event in events if isinstance(event, CellFinished) and event.outcome != "interrupted"
        }
        host = next((event.host.hostname for event in events if isinstance(event, RunStarted)), None)
        for event in events:
            if isinstance(event, RunStarted | RunFinished) or getattr(event, "cell", None) not in {None, *finished}:
                continue
            if isinstance(event, CellStarted):
                event = event.model_copy(update={"index": self._positions[event.cell], "host": host})
            yield event
