"""`sysbench compare --ab`: parses two specs, measures both in alternating rounds, and shows the verdicts."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sysbench import stderr
from sysbench.command import kinds, measuring
from sysbench.commands.compare.spec import CompareOptions
from sysbench.errors import SysbenchError, UsageError, unknown
from sysbench.log.round_logs import ARMS, Arm
from sysbench.spec.cell import RunSpec
from sysbench.spec.command_options import given, validated

if TYPE_CHECKING:
    from sysbench.commands.compare.comparison import Comparison
    from sysbench.render.table import Table


USUAL = "time"


def arms_of(texts: tuple[str, str]) -> dict[Arm, RunSpec]:
    """Parse both specs; raises UsageError with one line that names the arm and the problem."""
    specs: dict[Arm, RunSpec] = {}
    for arm, text in zip(ARMS, texts, strict=True):
        try:
            specs[arm] = spec_of_words(text)
        except UsageError as error:
            raise UsageError(f"--ab, {arm}: {error}") from None
    if specs["A"].kind != specs["B"].kind:
        raise UsageError(f"--ab: A is of `sysbench {specs['A'].kind}` and B of `sysbench {specs['B'].kind}`")
    return specs


def spec_of_words(text: str) -> RunSpec:
    """Parse a command line such as `time --size small --compile`; `time` and a leading `sysbench` are optional.

    Raises UsageError with the same message as the command itself.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{text} cannot be taken apart into words: {str(error).lower()}") from None
    if words and words[0] == "sysbench":
        words = words[1:]
    name = words.pop(0) if words and not words[0].startswith("-") else USUAL
    able = [kind for kind in kinds() if measuring(kind).in_turns]
    if name not in able:
        raise UsageError(unknown(name, "a command that can be measured in turns", able))
    return validated(measuring(name).spec_class, *given(name, words, measuring(name).spec_class))


INTERRUPTED = 130

Logs = dict[Arm, dict[int, Path]]
"""Logs of both arms by round."""


def compare(options: CompareOptions, texts: tuple[str, str]) -> int:
    """Measure both arms in alternating rounds, show the comparison, and return the exit code; raises SysbenchError."""
    specs = arms_of(texts)
    from sysbench.commands.compare import match as compare_match
    from sysbench.commands.compare.cells import flattened
    from sysbench.engine.plan import refuse_impossible

    a, b = ([flattened(cell.model_dump(mode="json")) for cell in spec.cells()] for spec in specs.values())
    compare_match.match(a, b, options.across)
    for spec in specs.values():
        refuse_impossible(list(spec.cells()))
    if options.plan:
        _show_plan(specs, options)
        return 0
    from sysbench.commands.compare import rounds
    from sysbench.log.storage import refuse_unwritable

    if options.json_path not in (None, "-"):
        refuse_unwritable(Path(str(options.json_path)))
    directory = rounds.new_directory(options.out)
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
    found = _show(options, texts, directory, logs)
    return INTERRUPTED if interrupted else _exit_code(found)


def _measure(specs: Mapping[Arm, RunSpec], options: CompareOptions, directory: Path, logs: Logs) -> bool:
    """Run all rounds and collect their logs; returns whether the user interrupted them."""
    from io import StringIO

    from rich.console import Console

    from sysbench.commands.compare import rounds
    from sysbench.commands.compare.live import RoundLines
    from sysbench.render.dashboard.live import can_draw_on
    from sysbench.spec.run import RunOptions

    console = Console(file=StringIO()) if options.quiet else Console(stderr=True)
    titles = {cell.key: cell.title for spec in specs.values() for cell in spec.cells()}
    lines = RoundLines(console, options.rounds, titles, live=not options.quiet and can_draw_on(console))
    began_s = time.monotonic()
    each = RunOptions(
        timeout_s=options.timeout_s, ceilings=False
    )  # A and B are compared with each other, not with ceilings
    turns = rounds.carry_out(specs, options.rounds, directory, each, lines.show)
    done = 0
    for turn in turns:
        if turn.interrupted:
            return True
        logs[turn.arm][turn.round] = turn.log
        done += 1
        _refuse_nothing_measured(turn.arm, turn.log)
        if turn.closes_round:
            one: Logs = {arm: {turn.round: files[turn.round]} for arm, files in logs.items()}
            lines.round(turn.round, _found(("A", "B"), one, options), time.monotonic() - began_s)
    return done < 2 * options.rounds


def _refuse_nothing_measured(arm: Arm, log: Path) -> None:
    """Raise SysbenchError if no cell of an arm works: more rounds would not change that."""
    from sysbench.log import runs

    cells = runs.load(log).cells
    if not any(cell.outcome == "ok" for cell in cells):
        first = next(iter(cells))
        detail = f": {first.detail}" if first.detail else ""
        raise SysbenchError(f"{arm} has measured nothing ({first.outcome}{detail}); its log is {log}")


def _found(names: tuple[str, str], logs: Logs, options: CompareOptions) -> Comparison:
    from sysbench.commands.compare.command import judged, side_of

    a, b = (side_of(name, files) for name, files in zip(names, (logs["A"], logs["B"]), strict=True))
    return judged(a, b, options, paired=True)


def _show(options: CompareOptions, texts: tuple[str, str], directory: Path, logs: Logs) -> Comparison | None:
    """Show and save the comparison of the rounds that both arms finished; None if there are none."""
    both = [number for number in logs["A"] if number in logs["B"]]
    if not both:
        if logs["A"] or logs["B"]:
            _say(f"stopped before both arms finished a round; the logs are in {directory}", options)
        return None
    from sysbench.commands.compare.command import show
    from sysbench.log.storage import write_atomically

    finished: Logs = {arm: {number: files[number] for number in both} for arm, files in logs.items()}
    found = _found(texts, finished, options)
    saved_to = directory / "comparison.json"
    write_atomically(saved_to, found.model_dump_json(indent=1).encode() + b"\n")
    show(found, options)
    if len(both) < options.rounds:
        _say(f"stopped after {len(both)} of {options.rounds} rounds", options)
    _say(f"saved  {saved_to}", options)
    return found


def _say(text: str, options: CompareOptions) -> None:
    if not options.quiet:
        stderr.say(text)


def _exit_code(found: Comparison | None) -> int:
    from sysbench.commands.compare.command import exit_code
    from sysbench.log.outcomes import FAILURES

    if found is None:
        return 1
    outcomes = {outcome for cell in found.cells for outcome in (cell.a_outcome, cell.b_outcome)}
    return exit_code(found) or int(bool(outcomes & FAILURES))


def _show_plan(specs: Mapping[Arm, RunSpec], options: CompareOptions) -> None:
    from sysbench.commands import running
    from sysbench.render.table import Sheet

    cells = len({cell.key for spec in specs.values() for cell in spec.cells()})
    subject = (
        "compare --ab",
        f"{options.rounds} rounds of A and B: {2 * options.rounds} runs, each in a fresh process",
        f"{cells} different cell{'' if cells == 1 else 's'}",
    )
    running.show_sheet(Sheet(subject, tuple(_plan(arm, spec) for arm, spec in specs.items())), options)


def _plan(arm: Arm, spec: RunSpec) -> Table:
    table: Table = measuring(spec.kind).part("plan")(list(spec.cells())).tables[0]
    return replace(table, title=f"{arm}: {table.title}" if table.title else arm)
