"""Options common to all commands: how cells are run, and how results are shown."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from sysbench.errors import unknown
from sysbench.spec.axes import Scalar, Texts, parse_scalar
from sysbench.spec.options import Option
from sysbench.spec.quantities import Seconds
from sysbench.spec.validation import option_name, option_of

Format = Literal["terminal", "markdown", "csv", "latex"]

OUTPUT = "Output"
EXECUTION = "Execution"
VIEW = "Display"

JsonPath = Annotated[str | None, Option(flags=("--json",), metavar="PATH|-", panel=OUTPUT, common=True)]
Shown = Annotated[
    Format,
    Option(metavar="NAME", panel=OUTPUT),
    Field(description="Table format: terminal, markdown, csv or latex."),
]
Columns = Annotated[
    Texts,
    Option(metavar="NAME,…", panel=OUTPUT),
    Field(description="Columns to show; with a leading +, in addition to the default ones. An unknown name lists all."),
]
Debug = Annotated[bool, Option(panel=OUTPUT), Field(description="Show tracebacks.")]


RUNS = Path("runs")
"""Default directory for runs, and for finding them by name."""


def run_names() -> set[str]:
    """Return the names of the runs and experiments in `RUNS`, as a shell completes them."""
    found = {path.stem for pattern in ("*.json", "*.jsonl", "*/") for path in RUNS.glob(pattern)}
    return {"latest", *found} if found else set()


_FILE_METAVARS = frozenset({"PATH", "PATH|-", "FILE", "FILE,…", "LOG"})


def _check_place(value: object) -> object:
    if isinstance(value, str) and not (value in PLACES or re.fullmatch(r"ray://[^/\s]+", value)):
        from sysbench.spec import hardware  # which imports the options

        simulates = f". --simulate {value} is for a GPU that is not here" if hardware.by_slug(value.lower()) else ""
        raise ValueError(f"{unknown(value, 'a place to run cells', PLACES, 'ray://HOST:PORT')}{simulates}")
    return value


def _parse_arguments(value: object) -> object:
    """Parse words of the form NAME=VALUE into pairs; a value that looks like a number becomes a number."""
    if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
        return value
    found = []
    for word in value:
        name, equals, text = word.partition("=")
        if not (name.isidentifier() and equals and text):
            raise ValueError(f"{word} is not NAME=VALUE, such as timeout_min=30")
        found.append((name, parse_scalar(text)))
    return tuple(found)


PLACES = ("ray", "slurm", "slurm:local")
"""Places other than this machine where cells can run, besides the address of a Ray cluster."""

Where = Annotated[str, BeforeValidator(_check_place)]
Arguments = Annotated[tuple[tuple[str, Scalar], ...], BeforeValidator(_parse_arguments)]

Sort = Literal["total", "calls", "avg", "med", "min", "max", "std", "name"]


@dataclass(frozen=True)
class Selection:
    """The part of a profile to show, and the order of its rows."""

    range: str | None = None
    """Only work launched in ranges with this name, or in modules under this path; None for everything."""
    kernel: re.Pattern[str] | None = None
    """Only kernels, or operators on a CPU, whose full name matches this pattern."""
    top: int = 20
    sort: Sort = "total"


class RunOptions(BaseModel):
    """Options of a run: destinations of results, display, and execution."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    out: Annotated[Path, Option(metavar="DIR", panel=OUTPUT)] = Field(
        default=Path("runs"), description="Directory for the log and the record."
    )
    json_path: JsonPath = Field(
        default=None, description="Also write the record to this file; - writes only the record, to stdout."
    )
    format: Shown = "terminal"
    tables: Annotated[Texts, Option(metavar="NAME,…", panel=OUTPUT)] = Field(
        default=(), description="Tables to show instead of the default ones for these axes; an unknown name lists all."
    )
    columns: Columns = ()
    no_live: Annotated[bool, Option(panel=OUTPUT)] = Field(
        default=False, description="Print one line per finished cell instead of the dashboard."
    )
    quiet: Annotated[bool, Option(flags=("--quiet", "-q"), panel=OUTPUT)] = Field(
        default=False, description="Show no progress, only the result."
    )
    debug: Debug = False
    plan: Annotated[bool, Option(panel=EXECUTION, common=True)] = Field(
        default=False, description="Show cells, parameters, FLOPs and predicted memory; run nothing."
    )
    resume: Annotated[Path | None, Option(metavar="LOG", panel=EXECUTION, common=True)] = Field(
        default=None, description="Continue a log: run only what is missing or failed in it."
    )
    timeout_s: Annotated[Seconds, Option(flags=("--timeout",), metavar="S", panel=EXECUTION)] = Field(
        default=1800.0, gt=0, description="Abort a cell after this many seconds of silence from its worker."
    )
    force: Annotated[bool, Option(panel=EXECUTION)] = Field(
        default=False,
        description="Also start cells that should not fit: whose predicted memory exceeds the device's, or that are "
        "larger than one that ran out of memory.",
    )
    on: Annotated[Where | None, Option(metavar="WHERE", panel=EXECUTION, values=PLACES, names_code=True)] = Field(
        default=None,
        description="Run cells elsewhere, in parallel: ray, ray://HOST:PORT, or slurm (slurm:local runs the jobs on "
        "this machine).",
    )
    on_arg: Annotated[Arguments, Option(metavar="NAME=VALUE", panel=EXECUTION, repeated=True, names_code=True)] = Field(
        default=(),
        description="Options passed to Ray (num_cpus=4) or to submitit (slurm_partition=gpu, timeout_min=30).",
    )
    parallel: Annotated[int | None, Option(metavar="N", panel=EXECUTION)] = Field(
        default=None, ge=1, le=256, description="Number of simulated cells to run in parallel."
    )

    @property
    def selection(self) -> Selection:
        """The part of the result to show: everything, unless the command has options that select a part."""
        return Selection()

    @model_validator(mode="after")
    def _refuse_on_with_parallel(self) -> Self:
        if self.on is not None and self.parallel is not None:
            raise ValueError(
                f"--parallel applies to this machine; --on {self.on} decides itself how many cells run at a time"
            )
        if self.on_arg and self.on is None:
            raise ValueError("--on-arg passes options to the system that --on names: add --on WHERE")
        return self

    @model_validator(mode="after")
    def _refuse_duplicate_files(self) -> Self:
        """Refuse the same path in two options: the second file would overwrite the first or an input file."""
        taken: dict[Path, str] = {}
        # Path.resolve raises RuntimeError for a symbolic link that leads back to itself; reading it reports the reason.
        for name, path in self._files():
            first = taken.setdefault(Path(os.path.realpath(path)), name)
            if first != name:
                raise ValueError(f"{name} {path} is also the file of {first}: give each its own file")
        return self

    def _files(self) -> Iterator[tuple[str, Path]]:
        fields = sorted(type(self).model_fields, key=lambda field: field not in ("source", "resume"))
        for field in fields:
            option, value = option_of(type(self).model_fields[field]), getattr(self, field)
            if option.metavar in _FILE_METAVARS and value not in (None, "-"):
                for path in value if isinstance(value, tuple) else (value,):
                    yield option_name(type(self), field), Path(path)


class SavedOptions(RunOptions):
    """Run options with `--from`, for commands whose `--from` accepts only a finished log or record."""

    source: Annotated[
        Path | None, Option(flags=("--from",), metavar="FILE", panel=OUTPUT, common=True, completions=run_names)
    ] = Field(default=None, description="Show a finished log or record instead of measuring. Does not need torch.")
