"""Shell completion for option values: sizes, GPUs, experiments, tables, columns, and names of earlier runs.

Nothing here imports torch. Completion never fails: candidates that cannot be determined are omitted.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel

from sysbench.command import command_of, commands, kinds, runnable
from sysbench.errors import SysbenchError
from sysbench.spec.command_options import keys_of
from sysbench.spec.validation import Given, literals, option_of

_RUN_METAVARS = ("FILE", "FILE,…", "LOG", "LOG|DIR…", "A", "B")
"""Marker for values that are finished runs, by path or by name."""


def complete(command: str, model: type[BaseModel], field: str, typed: str, given: dict[str, object]) -> list[str]:
    """Return the completions of the text typed so far for an option; in a comma-separated list, complete the last item.

    `given` holds the options typed earlier, by field.
    """
    earlier_items, comma, last = typed.rpartition(",")
    try:
        values = list(_candidates(command, model, field, typed, given))
    except (SysbenchError, ValueError, OSError):
        return []
    already_given = set(earlier_items.split(","))
    return [
        f"{earlier_items}{comma}{value}"
        for value in dict.fromkeys(values)
        if value.startswith(last) and value not in already_given
    ]


def _candidates(
    command: str, model: type[BaseModel], field: str, typed: str, given: dict[str, object]
) -> Iterable[str]:
    for kind in runnable():
        # `run` has the options of every command, as text.
        for name, key in keys_of(kind).items():
            if field == f"every_{name.replace('-', '_')}" and key.shorthand_value is None:
                return _candidates(kind, key.model, key.field, typed, given)
    info = model.model_fields[field]
    option = option_of(info)
    if option.values:
        return option.values
    if (option.metavar or "").lstrip("[").startswith("GPU"):
        from sysbench.spec import hardware

        return [each.slug for each in hardware.known()]
    if command == "run" and field in ("experiment", "resume"):
        return _experiments(field, typed, given)
    if field in ("tables", "columns") and commands()[command].spec is not None:
        return _tables(command) if field == "tables" else _columns(command)
    if field == "device":
        return ("auto", "cpu", "cuda", "mps")
    if option.metavar in _RUN_METAVARS:
        return [*_earlier_runs(given, command), *_files(typed)]
    return literals(info.annotation) or _files(typed)


def _experiments(field: str, typed: str, given: Given) -> Iterable[str]:
    from sysbench.commands.run import experiment_file
    from sysbench.log import runs

    if field == "resume":
        return ["latest", *runs.experiments(Path(str(given.get("out") or runs.RUNS))), *_files(typed)]
    return [*experiment_file.names(), *(path for path in _files(typed) if path.endswith((".toml", "/")))]


def _tables(command: str) -> Iterable[str]:
    found: Iterable[str] = command_of(command).part("tables")
    return found


def _columns(command: str) -> Iterable[str]:
    from sysbench.render import declared
    from sysbench.render.column_selection import ADD_PREFIX

    names = [name.display_name for name in declared.possible_columns(command, ())]
    return [*names, *(f"{ADD_PREFIX}{name}" for name in names)]


def _earlier_runs(given: Given, command: str) -> Iterable[str]:
    from sysbench.log import runs

    kind = command if command in kinds() else None
    return ["latest", *runs.names(Path(str(given.get("runs") or given.get("out") or runs.RUNS)), kind)]


def _files(typed: str) -> list[str]:
    head, slash, prefix = typed.rpartition(",")[2].rpartition("/")
    folder = Path(head or slash or ".")
    found = sorted(path for path in folder.iterdir() if path.name.startswith(prefix)) if folder.is_dir() else []
    return [f"{head}{slash}{path.name}{'/' if path.is_dir() else ''}" for path in found]
