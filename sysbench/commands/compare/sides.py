"""The two sides of a comparison: loaded, compared, shown, and judged by an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sysbench.commands.compare.spec import CompareOptions
from sysbench.errors import UsageError

if TYPE_CHECKING:
    from sysbench.commands.compare.cells import Side
    from sysbench.commands.compare.comparison import Comparison

REGRESSION_EXIT_CODE = 3


def load_side(name: str, files: Mapping[int, Path]) -> Side:
    """Load the runs of one side; `files` maps run numbers to files. Raises LogError if a file cannot be read."""
    from sysbench.commands.compare.cells import build_side
    from sysbench.log import runs

    return build_side(name, {number: runs.load(path) for number, path in files.items()})


def compare_sides(a: Side, b: Side, options: CompareOptions, *, paired: bool) -> Comparison:
    """Compare two sides, and apply the gate if there is one."""
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
