"""The page docs/options.md, made from the command line itself; `python -m tests.cli.option_reference` writes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import typer
from typer.core import TyperArgument, TyperGroup, TyperOption

from sysbench.cli import application
from sysbench.command import commands, kinds
from sysbench.commands.compare.cells import acceptable_axes
from sysbench.commands.compare.tables import TABLES
from sysbench.commands.kinds import command_of
from sysbench.render.markdown import escaped

PAGE = Path(__file__).parents[2] / "docs" / "options.md"

INTRODUCTION = """\
# Options and tables

`sysbench COMMAND --help all` says the same of one command. `run` also takes the options of the commands that it runs.
`python -m tests.cli.option_reference` makes this page from the command line, and a test compares the two.
"""


def reference() -> str:
    """Return every option with its meaning and the commands that have it, then the tables and the axes."""
    meanings: dict[tuple[str, str, str], list[str]] = {}
    described = [(command, _described(parameter)) for command, parameter in parameters()]
    elsewhere = {parameter[0] for command, parameter in described if command != "run"}
    for command, parameter in described:
        if command != "run" or parameter[0] not in elsewhere:
            meanings.setdefault(parameter, []).append(command)
    rows = [
        (f"`{flags}`", metavar, ", ".join(names), meaning)
        for (flags, metavar, meaning), names in sorted(meanings.items(), key=lambda item: item[0][0].lstrip("-"))
    ]
    tables = [
        (kind, ", ".join(f"`{name}`" for name in names))
        for kind, names in (*((kind, command_of(kind).results().tables) for kind in kinds()), ("compare", TABLES))
    ]
    return "\n".join(
        [
            INTRODUCTION,
            *_table(("option", "value", "commands", "meaning"), rows),
            "",
            "## Tables",
            "",
            *_table(("command", "`--tables`"), tables),
            "",
            "## Axes that `compare --across` accepts",
            "",
            ", ".join(f"`{name}`" for name in acceptable_axes()) + ".",
            "",
        ]
    )


def parameters() -> Iterator[tuple[str, TyperOption | TyperArgument]]:
    group = typer.main.get_command(application(list(commands())))
    assert isinstance(group, TyperGroup)
    for name, command in group.commands.items():
        for parameter in command.params:
            assert isinstance(parameter, TyperOption | TyperArgument)
            yield name, parameter


def _described(parameter: TyperOption | TyperArgument) -> tuple[str, str, str]:
    flags = ", ".join(parameter.opts) if isinstance(parameter, TyperOption) else str(parameter.metavar)
    value = parameter.metavar if isinstance(parameter, TyperOption) else ""
    return flags.replace("|", "\\|"), escaped((value or "").strip()), escaped(parameter.help or "")


def _table(headings: tuple[str, ...], rows: list[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(headings)} |"
    yield f"|{' --- |' * len(headings)}"
    yield from (f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
