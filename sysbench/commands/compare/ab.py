"""`sysbench compare --ab`: parses two specs, measures both in alternating rounds, and shows the verdicts.

Every round runs each arm once, in a fresh process with its own log, in alternating order (A B, B A, A B, …), so that
drift affects both arms equally. The logs of finished rounds remain if the comparison is aborted. Progress output is one
line for each round.
"""

from __future__ import annotations

import math
import shlex
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from sysbench import units
from sysbench.command import kinds
from sysbench.commands.compare import cells
from sysbench.commands.compare.cells import load_side
from sysbench.commands.compare.comparison import Comparison, compare_sides
from sysbench.commands.compare.output import exit_code, show
from sysbench.commands.compare.spec import CompareOptions
from sysbench.commands.kinds import command_of
from sysbench.engine import session
from sysbench.engine.interrupts import catch_interrupts
from sysbench.engine.plan import refuse_impossible
from sysbench.engine.process import Launcher
from sysbench.engine.provisions import Surroundings
from sysbench.errors import SysbenchError, UsageError, unknown
from sysbench.log import runs
from sysbench.log.cautions import fewer_threads
from sysbench.log.events import Event, RunFinished, RunStarted, ThreadsProbe, ThreadsProbed, WorkerReady
from sysbench.log.outcomes import FAILURES
from sysbench.log.runs import ARMS, Arm, log_name
from sysbench.log.storage import create_directory, refuse_unwritable, write_atomically
from sysbench.spec.cell import RunSpec
from sysbench.spec.command_options import parse_options, validated
from sysbench.spec.run import RunOptions
from sysbench.statistics.verdict import compare_rounds
from sysbench.stderr import print_line

INTERRUPTED_EXIT_CODE = 130

Logs = dict[Arm, dict[int, Path]]
"""Logs of both arms by round."""


def parse_arms(texts: tuple[str, str]) -> dict[Arm, RunSpec]:
    """Parse both specs; raises UsageError if one is invalid, naming the arm, or if their commands differ."""
    specs: dict[Arm, RunSpec] = {}
    for arm, text in zip(ARMS, texts, strict=True):
        try:
            specs[arm] = parse_spec(text)
        except UsageError as error:
            raise UsageError(f"--ab, {arm}: {error}") from None
    if specs["A"].kind != specs["B"].kind:
        raise UsageError(f"--ab: A is a `sysbench {specs['A'].kind}` and B is a `sysbench {specs['B'].kind}`")
    return specs


def parse_spec(text: str) -> RunSpec:
    """Parse a command line; `time` and a leading `sysbench` are optional. Raises UsageError as the command does."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"cannot split {text} into arguments: {str(error).lower()}") from None
    if words and words[0] == "sysbench":
        words = words[1:]
    supported = [kind for kind in kinds() if command_of(kind).can_alternate]
    name = words.pop(0) if words and not words[0].startswith("-") else supported[0]
    if name not in supported:
        raise UsageError(unknown(name, "a command that --ab can measure", supported))
    spec = command_of(name).models().spec
    return validated(spec, *parse_options(name, words, spec))


def compare(options: CompareOptions, texts: tuple[str, str]) -> int:
    specs = parse_arms(texts)
    a, b = ([cells.flatten_axes(cell.model_dump(mode="json")) for cell in spec.cells()] for spec in specs.values())
    cells.match(a, b)
    cells.refuse_obstacles(cells.find_obstacles(a, b, options.across), options.across)
    for spec in specs.values():
        refuse_impossible(list(spec.cells()))
    if options.json_path not in (None, "-"):
        refuse_unwritable(Path(str(options.json_path)))
    directory = create_directory(options.out, "compare")
    logs: Logs = {"A": {}, "B": {}}
    try:
        interrupted = _measure(specs, options, directory, logs)
    except SysbenchError:
        # Show what has been measured before the error; the error message comes last.
        _show(options, texts, directory, logs)
        raise
    finally:
        for path in (directory / "A", directory / "B", directory):
            with suppress(OSError):
                path.rmdir()
    comparison = _show(options, texts, directory, logs)
    return INTERRUPTED_EXIT_CODE if interrupted else _exit_code(comparison)


def _measure(specs: Mapping[Arm, RunSpec], options: CompareOptions, directory: Path, logs: Logs) -> bool:
    progress = RoundProgress(options.rounds, lambda text: say(text, options))
    began_s = time.monotonic()
    finished_turns = 0
    run_options = RunOptions(timeout_s=options.timeout_s)
    for turn in run_rounds(specs, options.rounds, directory, run_options, lambda _, __, event: progress.show(event)):
        if turn.interrupted:
            return True
        logs[turn.arm][turn.round] = turn.log
        finished_turns += 1
        _refuse_unmeasured(turn.arm, turn.log)
        if turn.closes_round:
            round_logs: Logs = {arm: {turn.round: files[turn.round]} for arm, files in logs.items()}
            progress.show_round(turn.round, _compare_logs(("A", "B"), round_logs, options), time.monotonic() - began_s)
    return finished_turns < 2 * options.rounds


def _refuse_unmeasured(arm: Arm, log: Path) -> None:
    """Raise SysbenchError if no cell of this log was measured: further rounds would fail in the same way."""
    measured = runs.load(log).cells
    if not any(cell.outcome == "ok" for cell in measured):
        first = measured[0]
        detail = f": {first.detail}" if first.detail else ""
        raise SysbenchError(f"{arm} measured nothing ({first.outcome}{detail}); its log is {log}")


def _compare_logs(names: tuple[str, str], logs: Logs, options: CompareOptions) -> Comparison:
    a, b = (load_side(name, files) for name, files in zip(names, (logs["A"], logs["B"]), strict=True))
    return compare_sides(a, b, options, paired=True)


def _show(options: CompareOptions, texts: tuple[str, str], directory: Path, logs: Logs) -> Comparison | None:
    complete_rounds = [number for number in logs["A"] if number in logs["B"]]
    if not complete_rounds:
        if logs["A"] or logs["B"]:
            say(f"stopped before both arms finished a round; the logs are in {directory}", options)
        return None
    complete_logs: Logs = {arm: {number: files[number] for number in complete_rounds} for arm, files in logs.items()}
    comparison = _compare_logs(texts, complete_logs, options)
    path = directory / "comparison.json"
    write_atomically(path, comparison.model_dump_json(indent=1).encode() + b"\n")
    show(comparison, options)
    if len(complete_rounds) < options.rounds:
        say(f"stopped after {len(complete_rounds)} of {options.rounds} rounds", options)
    say(f"saved  {path}", options)
    return comparison


def say(text: str, options: CompareOptions) -> None:
    if not options.quiet:
        with suppress(OSError):  # a closed pipe ends the progress, not the measurement
            print_line(text)


def _exit_code(comparison: Comparison | None) -> int:
    if comparison is None:
        return 1
    outcomes = {outcome for cell in comparison.cells for outcome in (cell.a_outcome, cell.b_outcome)}
    return exit_code(comparison) or int(bool(outcomes & FAILURES))


@dataclass(frozen=True)
class Turn:
    """One run of one arm."""

    round: int
    """Number of the round, from 1."""
    arm: Arm
    log: Path
    interrupted: bool = False
    """Whether the user interrupted the turn, and with it the whole comparison."""
    threads_probe: ThreadsProbe | None = None
    """Choice of CPU threads, which all later turns keep."""

    @property
    def closes_round(self) -> bool:
        return self.arm == arm_order(self.round)[1]


def arm_order(number: int) -> tuple[Arm, Arm]:
    return ("A", "B") if number % 2 else ("B", "A")


def run_rounds(
    specs: Mapping[Arm, RunSpec],
    rounds: int,
    directory: Path,
    options: RunOptions,
    on_event: Callable[[int, Arm, Event], None],
    launcher: Launcher | None = None,
) -> Iterator[Turn]:
    """Run all rounds, and yield each turn once its log is complete; an interrupt ends the current turn cleanly."""
    surroundings = Surroundings(ceilings=False)  # A and B are compared with each other, not with ceilings
    with catch_interrupts() as interrupts:
        for number in range(1, rounds + 1):
            for arm in arm_order(number):
                if interrupts.requested:
                    return
                turn = _run_arm(specs[arm], number, arm, directory, options, surroundings, on_event, launcher)
                yield turn
                if turn.interrupted:
                    return
                surroundings = replace(surroundings, threads_probe=turn.threads_probe)


def _run_arm(
    spec: RunSpec,
    number: int,
    arm: Arm,
    directory: Path,
    options: RunOptions,
    surroundings: Surroundings,
    on_event: Callable[[int, Arm, Event], None],
    launcher: Launcher | None,
) -> Turn:
    options = options.model_copy(update={"out": directory / arm})
    surroundings = replace(surroundings, log_name=log_name(number))
    with session.run(spec, options, launcher=launcher, surroundings=surroundings) as running:
        turn = Turn(number, arm, running.log_path)
        for event in running:
            on_event(number, arm, event)
            if isinstance(event, ThreadsProbed):
                turn = replace(turn, threads_probe=event)
            if isinstance(event, RunFinished) and event.status == "interrupted":
                turn = replace(turn, interrupted=True)
    return turn


class RoundProgress:
    """Progress output: the device once, then a line for each round."""

    def __init__(self, rounds: int, say: Callable[[str], None]) -> None:
        self._rounds, self._say = rounds, say
        self._said: set[str] = set()
        self._kind = ""
        self._ratios: list[float] = []

    def show(self, event: Event) -> None:
        """Say on which device and on how many threads everything is measured."""
        match event:
            case RunStarted():
                self._kind = event.kind
            case WorkerReady() if event.devices:
                self._say_once(f"{event.devices[0].name} · torch {event.torch.torch}")
            case ThreadsProbed() if threads := fewer_threads(event, self._kind):
                self._say_once(" → ".join(threads))
            case _:
                pass

    def _say_once(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            self._say(line)

    def show_round(self, number: int, comparison: Comparison, elapsed_s: float) -> None:
        times = [time for cell in comparison.cells for time in cell.times if time.headline]
        words = [f"round {number:>{len(str(self._rounds))}} of {self._rounds}"]
        if times:
            ratio = math.exp(statistics.fmean(math.log(time.ratio) for time in times))
            self._ratios.append(ratio)
            if len(times) == 1:
                words.append(f"{times[0].quantity} A {units.seconds(times[0].a_s)}, B {units.seconds(times[0].b_s)}")
            words.append(f"B / A {units.ratio(ratio)}")
        if len(self._ratios) > 1:
            pooled = compare_rounds([1.0] * len(self._ratios), self._ratios)
            interval = f" ({pooled.low:.3f}–{pooled.high:.3f})" if pooled.low is not None else ""
            words.append(f"so far {pooled.ratio:.3f}{interval}")
        words += [f"{cell.a_outcome} in A, {cell.b_outcome} in B" for cell in comparison.cells if not cell.times][:1]
        if number < self._rounds:
            words.append(f"{units.duration(elapsed_s / number * (self._rounds - number))} left")
        self._say("  ".join(words))
