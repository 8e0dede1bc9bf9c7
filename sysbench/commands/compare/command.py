"""Command line of `sysbench compare`."""

from __future__ import annotations

import gc
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


@command_options(CompareOptions)
def compare(given: Given) -> None:
    """Tell whether B is faster than A, slower, the same, or too close to call; --ab measures both."""
    options = validated(CompareOptions, given)
    artefacts = _read_artefacts(options)
    if artefacts is not None:
        _compare_artefacts(*artefacts, options)
        return
    from sysbench.commands.compare import cells, comparison, output, tables

    cells.refuse_unknown_axes(options.across)
    tables.refuse_unknown_tables(options.tables)
    if options.ab is not None:
        from sysbench.commands.compare import ab as compare_ab

        raise typer.Exit(compare_ab.compare(options, options.ab))
    # Everything that is read stays alive until the end; collecting garbage would take a sixth of the time.
    gc.disable()
    a, b, paired = _load_sides(options)
    found = comparison.compare_sides(a, b, options, paired=paired)
    output.show(found, options)
    raise typer.Exit(output.exit_code(found))


def _read_artefacts(options: CompareOptions) -> tuple[Artefact, Artefact] | None:
    """Read two traces or memory snapshots; return None if both arguments are runs."""
    if options.a is None or options.b is None:
        return None
    from sysbench.commands import saved

    a, b = (saved.artefact(Path(name)) for name in (options.a, options.b))
    if a is not None and b is not None:
        return a, b
    for name, artefact in ((options.a, a), (options.b, b)):
        if artefact is not None:
            raise UsageError(f"{name} is a {artefact.kind}: compare it with another {artefact.kind}, not with a run")
    return None


def _compare_artefacts(a: Artefact, b: Artefact, options: CompareOptions) -> None:
    from sysbench.commands.compare.artefacts import sheet, summary_line
    from sysbench.commands.showing import show_sheet

    for name in ("gate", "across", "export"):
        if getattr(options, name):
            raise UsageError(f"--{name} applies to runs; a {a.kind} is a single sample and has no verdict")
    one_line = options.quiet and not options.tables and options.format == "terminal"
    show_sheet(sheet(a, b, options.tables), options, line=summary_line(a, b) if one_line else "")


def _load_sides(options: CompareOptions) -> tuple[Side, Side, bool]:
    """Load both sides, and return whether they are the two arms of one `--ab` comparison."""
    from sysbench.commands.compare.cells import load_side
    from sysbench.log import runs

    assert options.a is not None
    first = runs.find(options.a, options.runs)
    if options.b is None:
        arms = runs.find_arms(first)
        if len(arms) != 2:
            raise LogError(f"compare needs two runs, but only {options.a} is given: sysbench compare A B")
        return load_side(f"{options.a} A", arms["A"].files), load_side(f"{options.a} B", arms["B"].files), True
    second = runs.find(options.b, options.runs)
    a_arm, b_arm = runs.find_arm(first), runs.find_arm(second)
    if a_arm and b_arm and a_arm.directory == b_arm.directory and a_arm.arm != b_arm.arm:
        return load_side(options.a, a_arm.files), load_side(options.b, b_arm.files), True
    if first == second:
        print_line(f"A and B are the same: {options.a} and {options.b} both stand for {first[0]}")
    return load_side(options.a, dict(enumerate(first))), load_side(options.b, dict(enumerate(second))), False
