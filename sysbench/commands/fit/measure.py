"""Worker side of `sysbench fit`: search for combinations of changes, and report each one that was tried."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from sysbench.commands.fit import extents, verify
from sysbench.commands.fit.causes import explained
from sysbench.commands.fit.record import CombinationTried, SearchStopped, Trial
from sysbench.commands.fit.search import rules
from sysbench.commands.fit.search.changes import Combination, changes_of, compiling
from sysbench.commands.fit.search.processes import Processes, Strand, Task
from sysbench.commands.fit.search.rules import Memory, Outcome, Search
from sysbench.commands.fit.search.trials import (
    bounds,
    has_links,
    outcome_of,
    simulated_on,
)
from sysbench.commands.fit.spec import FitCell
from sysbench.interpreter import gc_paused
from sysbench.lab.compilation import stage_entered
from sysbench.lab.knobs.lora import import_peft
from sysbench.log.cautions import margin_uncertainty_bytes
from sysbench.log.events import DeviceInfo, Event
from sysbench.simulate.depths import Depths, depths_for_lines, with_layers
from sysbench.spec import hardware

SLOW_IMPORTS = ("lora", "ranks")
"""Groups of changes whose libraries take seconds to import: peft, and torch's FSDP2."""

AS_ASKED = "as asked"
"""Home of what is simulated of the step as asked: the process that explains it has its trace already."""


def run(cell: FitCell, device: DeviceInfo, artifact: Path | None = None) -> Iterator[Event]:
    """Answer the question of the cell; `device` and `artifact` are not used."""
    began_s = time.monotonic()
    trials: list[Trial] = []
    if not cell.asked_only:
        _import_what_all_need(cell)
    with Processes(1 if cell.asked_only else None) as processes:
        if cell.table:
            yield stage_entered(cell.key, "searching")
            yield from extents.run(cell, processes)
            return
        yield stage_entered(cell.key, "simulating")
        for events in processes.results([Task(partial(explained, cell), AS_ASKED)]):
            yield from events
        yield stage_entered(cell.key, "searching")
        ends_s = math.inf if cell.limit_s is None else began_s + cell.limit_s

        def is_over() -> bool:
            return time.monotonic() > ends_s and set(cell.on) <= {trial.gpu for trial in trials if not trial.changes}

        for event in search_with(Simulations(cell, depths_for_lines(cell)), processes, is_over):
            if isinstance(event, CombinationTried):
                trials.append(event)
            yield event
    if cell.verify:
        yield from verify.run(cell, trials)


def _import_what_all_need(cell: FitCell) -> None:
    """Import the libraries of the step as asked before processes are forked, or each of them takes seconds for it."""
    with gc_paused(), suppress(ImportError):  # what builds the model says what is missing
        if cell.own is not None and cell.own.is_hugging_face:
            import_module("transformers.modeling_utils")
        if cell.lora:
            import_peft()
    gc.freeze()  # collections would look at what was imported, in every process


def search_with(
    simulations: Simulations, processes: Processes, is_over: Callable[[], bool] = lambda: False
) -> Iterator[CombinationTried | SearchStopped]:
    """Search until the end, or until time is over, and yield each combination that was simulated whole."""
    question = simulations.question
    changes = () if question.asked_only else changes_of(question)
    last = None if question.asked_only else compiling(question)
    for strands in Search(memory_of(question), changes, question.faster, last).stages():
        for _ in processes.run([simulations.answered(strand) for strand in strands]):
            yield from simulations.take_events()
            if is_over() and question.limit_s is not None:
                yield SearchStopped(at_s=time.time(), cell=question.key, max_time_s=question.limit_s)
                return


def memory_of(question: FitCell) -> Mapping[str, Memory]:
    sizes = {gpu: question.allowed_bytes(hardware.by_name(gpu).memory_bytes) for gpu in question.on}
    return {gpu: Memory(whole, whole - margin_uncertainty_bytes(whole)) for gpu, whole in sizes.items()}


class Simulations:
    """The combinations of a question that were simulated whole, by combination and GPU, and bounds of others."""

    def __init__(self, question: FitCell, depths: Depths | None = None) -> None:
        self.question = question
        self._depths = depths
        self._smaller = tuple(with_layers(question, depth) for depth in depths[:2]) if depths else ()
        self._bounds: dict[Combination, Mapping[str, Outcome]] = {}
        self._trials: dict[tuple[Combination, str], Trial | None] = {}
        self._new: list[Trial] = []

    def answered(self, strand: rules.Strand) -> Strand:
        """Run a strand of a search: simulate what it asks for."""
        outcome = None
        while True:
            try:
                combination, gpu, simulate = strand.send(outcome)
            except StopIteration:
                return
            outcome = yield from self._answer(combination, gpu, simulate)

    def take_events(self) -> Iterator[CombinationTried]:
        """Yield the combinations that were simulated whole since the last call."""
        new, self._new = self._new, []
        for trial in new:
            yield CombinationTried(at_s=time.time(), cell=self.question.key, **trial.model_dump())

    def _answer(self, combination: Combination, gpu: str, simulate: bool) -> Generator[Task, Any, Outcome | None]:
        home = next((change.group for change in combination if change.group in SLOW_IMPORTS), None)
        if not combination:
            home = AS_ASKED
        gpus = [each for each in self.question.on if home != "ranks" or has_links(each)]
        if gpu not in gpus:  # found out before a trace, it takes no time
            return None
        if self._depths is not None and not simulate:
            if combination not in self._bounds:  # of all GPUs: they share traces
                compute = partial(bounds, self._smaller, self._depths, combination, gpus)
                self._bounds[combination] = yield Task(compute, home)
            if (bound := self._bounds[combination].get(gpu)) is not None:
                return bound
        if (combination, gpu) not in self._trials:
            wanted = [gpu] if self._depths is not None else gpus
            found = yield Task(partial(simulated_on, self.question, combination, wanted), home)
            self._new += filter(None, found.values())
            self._trials |= {(combination, each): trial for each, trial in found.items()}
        trial = self._trials[combination, gpu]
        return outcome_of(trial) if trial is not None else None
