"""Command line of `sysbench compare`."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sysbench.commands.compare.spec import CompareOptions
from sysbench.errors import LogError, UsageError
from sysbench.spec.command_options import Given, command_options, validated
from sysbench.stderr import print_line

if TYPE_CHECKING:
    from sysbench.commands.artefacts import Artefact
    from sysbench.commands.compare.cells import Side
    from sysbench.commands.compare.comparison import Comparison

REGRESSION_EXIT_CODE = 3


@command_options(CompareOptions)
def compare(given: Given) -> None:
    """Tell whether B is faster than A, slower, the same, or too close to call; --ab measures both."""
    options = validated(CompareOptions, given)
    artefacts = _read_artefacts(options)
    if artefacts is not None:
        from sysbench.commands.compare.artefacts import sheet
        from sysbench.commands.running import show_sheet

        for name in ("gate", "across"):
            if getattr(options, name):
                raise UsageError(
                    f"--{name} applies to runs; a {artefacts[0].kind} is a single sample and has no verdict"
                )
        show_sheet(sheet(*artefacts, options.tables), options)
        return
    from sysbench.commands.compare.cells import refuse_unknown_axes

    refuse_unknown_axes(options.across)
    if options.tables:
        from sysbench.commands.compare import tables as compare_tables

        compare_tables.refuse_unknown_tables(options.tables)
    if options.ab is not None:
        from sysbench.commands.compare import ab as compare_ab

        raise typer.Exit(compare_ab.compare(options, options.ab))
    # Everything that is read stays alive until the end; collecting garbage would take a sixth of the time.
    gc.disable()
    a, b, paired = _load_sides(options)
    comparison = compare_sides(a, b, options, paired=paired)
    show(comparison, options)
    raise typer.Exit(exit_code(comparison))


def _read_artefacts(options: CompareOptions) -> tuple[Artefact, Artefact] | None:
    """Read two traces or memory snapshots; return None if both arguments are runs.

    Raises UsageError if only one argument is a run.
    """
    if options.a is None or options.b is None:
        return None
    from sysbench.commands import artefacts

    a, b = (artefacts.read(Path(name)) for name in (options.a, options.b))
    if a is not None and b is not None:
        return a, b
    for name, artefact in ((options.a, a), (options.b, b)):
        if artefact is not None:
            raise UsageError(f"{name} is a {artefact.kind}: compare it with another {artefact.kind}, not with a run")
    return None


def _load_sides(options: CompareOptions) -> tuple[Side, Side, bool]:
    """Load both sides, and return whether they are the two arms of one `--ab` comparison.

    Raises LogError if a run is missing or cannot be read.
    """
    from sysbench.log import runs

    assert options.a is not None
    first = runs.find(options.a, options.runs)
    if options.b is None:
        arms = runs.find_arms(first)
        if len(arms) != 2:
            raise LogError(f"compare needs two runs, but only {options.a} is given: sysbench compare A B")
        (name_a, name_b) = (f"{options.a} {arm}" for arm in arms)
        return load_side(name_a, arms["A"].files), load_side(name_b, arms["B"].files), True
    second = runs.find(options.b, options.runs)
    a_arm, b_arm = runs.find_arm(first), runs.find_arm(second)
    if a_arm and b_arm and a_arm.directory == b_arm.directory and a_arm.arm != b_arm.arm:
        return load_side(options.a, a_arm.files), load_side(options.b, b_arm.files), True
    if first == second:
        print_line(f"A and B are the same: {options.a} and {options.b} both stand for {first[0]}")
    a, b = (dict(enumerate(files)) for files in (first, second))
    return load_side(options.a, a), load_side(options.b, b), False


def load_side(name: str, files: Mapping[int, Path]) -> Side:
    """Load the runs of one side; `files` maps run numbers to files. Raises LogError if a file cannot be read."""
    from sysbench.commands.compare.cells import build_side
    from sysbench.log import runs

    return build_side(name, {number: runs.load(path) for number, path in files.items()})


def compare_sides(a: Side, b: Side, options: CompareOptions, *, paired: bool) -> Comparison:
    """Compare two sides, and apply the gate if there is one.

    Raises the same exceptions as `comparison.compare`, and UsageError if the gate has nothing to check.
    """
    from sysbench.commands.compare import comparison
    from sysbench.commands.compare.comparison import apply_gate
    from sysbench.commands.compare.tables import MAX_CELLS_WITH_PHASES

    include_phases = (
        bool(options.tables or options.json_path or options.format == "csv") or len(a.cells) <= MAX_CELLS_WITH_PHASES
    )
    rules = comparison.Rules(options.margin, options.across, paired, include_phases)
    result = comparison.compare(a, b, rules)
    if options.gate is None:
        return result
    comparison.refuse_unmeasured(result)
    return result.model_copy(update={"gate": apply_gate(result, options.gate, strict=options.strict)})


def show(comparison: Comparison, options: CompareOptions) -> None:
    """Print the comparison in the selected format, and write the JSON file and the job summary if requested."""
    from sysbench.commands.compare import tables as compare_tables
    from sysbench.render.output import results, show_sheet

    content = comparison.model_dump_json(indent=1) + "\n" if options.json_path is not None else ""
    if options.json_path not in (None, "-"):
        from sysbench.log.storage import write_atomically

        write_atomically(Path(options.json_path), content.encode())
    names = options.tables or (("cells",) if options.format == "csv" else ())
    if options.summary is not None:
        _summarize(comparison, names)
    with results() as console:
        if options.json_path == "-":
            sys.stdout.write(content)
        elif options.export is not None:
            from sysbench.commands.compare.export import export_text

            sys.stdout.write(export_text(comparison, options.export))
        elif options.quiet and not options.tables and options.format == "terminal":
            from rich.text import Text

            console.print(Text(compare_tables.summary_line(comparison)), soft_wrap=True)
        else:
            show_sheet(compare_tables.sheet(comparison, names), console, options.format)


def _summarize(comparison: Comparison, names: Sequence[str]) -> None:
    """Append the comparison to GitHub's job summary; raises UsageError outside a job, OutputError if writing fails."""
    from sysbench.commands.compare import tables as compare_tables
    from sysbench.log.storage import cannot_write
    from sysbench.render import theme
    from sysbench.render.markdown import markdown

    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if not path:
        raise UsageError("--summary github appends to the file named by GITHUB_STEP_SUMMARY, which is not set")
    try:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(
                theme.encodable(
                    theme.without_control_characters(markdown(compare_tables.sheet(comparison, names))), "utf-8"
                )
                + "\n"
            )
    except OSError as error:
        raise cannot_write(Path(path), error) from error


def exit_code(comparison: Comparison) -> int:
    """Return 3 if B is significantly worse than the gate allows, or with --strict possibly worse; otherwise 0."""
    return 0 if comparison.gate is None or comparison.gate.holds else REGRESSION_EXIT_CODE
