"""Options of `sysbench run`: options of the experiment itself, and overrides for the options of its runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, create_model

from sysbench.command import Kind, command_of, runnable
from sysbench.spec.axes import Scalar
from sysbench.spec.command_options import keys_of
from sysbench.spec.options import Option
from sysbench.spec.run import EXECUTION, OUTPUT, JsonPath, RunOptions
from sysbench.spec.validation import Given, option_of

OVERRIDES_PANEL = "Overrides, for every run that accepts them"


class ExperimentOptions(RunOptions):
    """Options of `sysbench run` for a whole experiment."""

    experiment: Annotated[str | None, Option(metavar="[NAME|FILE.toml]", positional=True)] = Field(
        default=None, description="A built-in experiment, or a file. Without it, the built-in experiments are listed."
    )
    out: Annotated[Path, Option(metavar="DIR", panel=OUTPUT, common=True)] = Field(
        default=Path("runs"), description="Directory in which to create the experiment's directory."
    )
    plan: Annotated[bool, Option(panel=EXECUTION, common=True)] = Field(
        default=False,
        description="Show every run with its cells, their predicted memory, how long it took before, and whether it "
        "is simulated, changed or skipped on this machine; run nothing.",
    )
    resume: Annotated[Path | None, Option(metavar="DIR", panel=EXECUTION, common=True)] = Field(
        default=None,
        description="Continue in this directory, or in that of an earlier experiment: latest, latest~1, quick. Runs "
        "only missing and failed cells.",
    )
    plan_for: Annotated[str | None, Option(flags=("--for",), metavar="GPU", panel=EXECUTION, common=True)] = Field(
        default=None,
        description="Predict what a machine with this GPU would measure; the GPU need not be present: h100, "
        "a100-80gb. With --plan: how it would run there, and how long it takes.",
    )
    allow_code: Annotated[bool, Option(panel=EXECUTION)] = Field(
        default=False,
        description="Allow experiment files outside the current directory to name code, such as a model.",
    )
    # Options of a single run, which the experiment file determines.
    json_path: JsonPath = Field(
        default=None,
        description="Also write the list, the plan, or the records of all runs to this file; - writes only these, "
        "to stdout.",
    )
    tables: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    on: str | None = None
    on_arg: tuple[tuple[str, Scalar], ...] = ()
    parallel: int | None = None


def _create_overrides_model() -> type[BaseModel]:
    kinds_by_option: dict[str, list[Kind]] = {}
    for kind in runnable():
        for name, key in keys_of(kind).items():
            of_spec = key.model is command_of(kind).models().spec
            if of_spec and key.shorthand_value is None and not option_of(key.info).positional:
                kinds_by_option.setdefault(name, []).append(kind)
    option_by_name = {name: option_of(keys_of(kinds[0])[name].info) for name, kinds in kinds_by_option.items()}
    flag_counts = Counter(
        flag
        for option in option_by_name.values()
        for flag in {*option.flags} - {f"--{name}" for name in option_by_name}
    )
    return create_model(
        "Overrides",
        **{
            _field_name(name): _definition(
                name, kinds, [flag for flag in option_by_name[name].flags if flag_counts[flag] == 1]
            )
            for name, kinds in kinds_by_option.items()
        },
    )


def by_long_name(given: Given) -> dict[str, str]:
    """Return the given overrides by long name; the value of a switch is ""."""
    names = {_field_name(name): name for kind in runnable() for name in keys_of(kind)}
    return {names[field]: "" if word is True else str(word) for field, word in given.items()}


def _field_name(name: str) -> str:
    """Return a field name that is neither a Python keyword, such as `with`, nor a field of ExperimentOptions."""
    return f"every_{name.replace('-', '_')}"


def _definition(name: str, kinds: list[Kind], other_flags: Iterable[str]) -> Any:
    key = keys_of(kinds[0])[name]
    command_option = option_of(key.info)
    option = Option(
        flags=(f"--{name}", *other_flags),
        metavar=command_option.metavar,
        panel=OVERRIDES_PANEL,
        shorthands=command_option.shorthands,
    )
    description = f"{(key.info.description or '').removesuffix('.')} ({', '.join(kinds)})."
    if key.is_switch:
        return Annotated[bool, option], Field(default=False, description=description)
    return Annotated[str | None, option], Field(default=None, description=description)


Overrides = _create_overrides_model()
"""Options that override those of the runs."""
