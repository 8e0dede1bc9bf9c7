"""Worker side of `sysbench fit`: search for combinations of changes, and report each one that was tried."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator
from functools import partial
from itertools import groupby
from pathlib import Path

from sysbench.commands.fit import extents, survey, verify
from sysbench.commands.fit.causes import explained
from sysbench.commands.fit.record import CombinationTried, Trial
from sysbench.commands.fit.search import rules
from sysbench.commands.fit.search.changes import Combination, changes_of
from sysbench.commands.fit.search.processes import Processes, Strand, Task
from sysbench.commands.fit.search.rules import Outcome, Search
from sysbench.commands.fit.search.trials import MEMORY_ERROR_SHARE, Depths, depths_of, estimated, simulated, with_layers
from sysbench.commands.fit.spec import FitCell
from sysbench.commands.fit.suggestions import worth_showing
from sysbench.lab.compilation import stage_entered
from sysbench.log.events import DeviceInfo, Event

SLOW_IMPORTS = ("lora", "ranks")
"""Groups of changes whose libraries take seconds to import: peft, and torch's FSDP2."""


def run(cell: FitCell, device: DeviceInfo, artifact: Path | None = None) -> Iterator[Event]:
    """Answer the question of the cell; `device` and `artifact` are not used."""
    trials: list[Trial] = []
    with Processes() as processes:
        if cell.table:
            yield stage_entered(cell.key, "searching")
            yield from extents.run(cell, processes)
            return
        yield stage_entered(cell.key, "simulating")
        for events in processes.results([Task(partial(explained, cell))]):
            yield from events
        yield stage_entered(cell.key, "searching")
        for event in search_with(Simulations(cell, depths_of(cell)), processes):
            yield event
            trials.append(event)
        if cell.explore:
            yield from survey.run(cell, trials, processes)
    if cell.verify:
        yield from verify.run(cell, trials)


def search_with(simulations: Simulations, processes: Processes) -> Iterator[CombinationTried]:
    """Search, and simulate whole what is worth showing, until nothing that is worth it is an estimate."""
    question = simulations.question
    changes = () if question.asked_only else changes_of(question)
    while True:
        for strands in Search(question.on, changes, question.faster).stages():
            for _ in processes.run([simulations.answered(strand) for strand in strands]):
                yield from simulations.take_events()
        promising = list(simulations.promising())
        if not promising:
            return
        for _ in processes.run(promising):
            yield from simulations.take_events()


class Simulations:
    """The simulated and estimated combinations of a question, by combination and GPU."""

    def __init__(self, question: FitCell, depths: Depths | None = None) -> None:
        self.question = question
        self._depths = depths
        self._smaller = tuple(with_layers(question, depth) for depth in depths[:2]) if depths else ()
        self._estimates: dict[tuple[Combination, str], Trial] = {}
        self._new: list[Trial] = []
        self.trials: dict[tuple[Combination, str], Trial | None] = {}

    def answered(self, strand: rules.Strand) -> Strand:
        """Run a strand of a search: simulate or estimate what it asks for and is not known yet."""
        outcome = None
        while True:
            try:
                combination, gpu = strand.send(outcome)
            except StopIteration:
                return
            if (combination, gpu) not in self.trials and (combination, gpu) not in self._estimates:
                yield from self._tried(combination, gpu)
            outcome = self.outcome(combination, gpu)

    def outcome(self, combination: Combination, gpu: str) -> Outcome | None:
        """Return what a combination needs on a GPU: simulated, or else estimated; None if that is not possible."""
        key = combination, gpu
        if key in self.trials:
            trial = self.trials[key]
            return outcome_of(trial, trial.is_safe) if trial is not None else None
        estimate = self._estimates[key]
        return outcome_of(estimate, estimate.fits, 1 - MEMORY_ERROR_SHARE)

    def promising(self) -> Iterator[Strand]:
        """Yield strands that simulate whole what was estimated and is worth it: what to show, or else the nearest miss.

        The GPUs of a combination are in one strand, because they share a trace.
        """
        wanted = [trial for gpu in self.question.on for trial in self._to_show(gpu)]
        found = [key for key, trial in self._estimates.items() if any(trial is each for each in wanted)]
        for combination, keys in groupby(sorted(found, key=repr), key=lambda key: key[0]):
            yield self._simulated_on(combination, [gpu for _, gpu in keys])

    def take_events(self) -> Iterator[CombinationTried]:
        """Yield the combinations that were simulated whole since the last call."""
        new, self._new = self._new, []
        for trial in new:
            yield CombinationTried(at_s=time.time(), cell=self.question.key, **trial.model_dump())

    def _to_show(self, gpu: str) -> list[Trial]:
        simulated = [trial for (_, where), trial in self.trials.items() if where == gpu and trial is not None]
        estimated = [trial for key, trial in self._estimates.items() if key[1] == gpu and key not in self.trials]
        trials = [*simulated, *estimated]
        parts = worth_showing(trials, [gpu], faster=self.question.faster)
        shown = [trial for _, _, part in parts for trial in part]
        return shown or [max(trials, key=lambda trial: trial.margin_bytes)]

    def _tried(self, combination: Combination, gpu: str) -> Strand:
        if self._depths is not None and combination:
            compute = partial(estimated, self._smaller, self._depths, combination, gpu)
            estimate = yield Task(compute, _home(combination))
            if estimate is not None:
                self._estimates[combination, gpu] = estimate
                return
        yield from self._simulated_on(combination, [gpu])

    def _simulated_on(self, combination: Combination, gpus: list[str]) -> Strand:
        for gpu in gpus:
            compute = partial(simulated, self.question, combination, gpu)
            trial = self.trials[combination, gpu] = yield Task(compute, _home(combination))
            if trial is not None:
                self._new.append(trial)


def _home(combination: Combination) -> Hashable:
    return next((change.group for change in combination if change.group in SLOW_IMPORTS), None)


def outcome_of(trial: Trial, fits: bool, least_share: float = 1.0) -> Outcome:
    """Return what the search must know of a trial whose memory is at least this share of what it says."""
    return Outcome(
        fits=fits,
        needed_bytes=trial.needed_bytes,
        step_s=trial.relative_s,
        state_fits=trial.state_bytes * least_share <= trial.gpu_bytes,
        tensors_fit=trial.allocated_peak_bytes * least_share <= trial.gpu_bytes,
    )
