"""How a run is carried out and what becomes of its results: options that are the same for every command.

None of them changes what is measured, so none of them is part of a log's identity.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, Self, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from sysbench.spec.axes import texts
from sysbench.spec.options import Option
from sysbench.spec.validation import option_name, option_of

Format = Literal["terminal", "markdown", "csv", "latex"]

OUTPUT = "Output"
EXECUTION = "Execution"
VIEW = "What is shown"


def _files(value: object) -> tuple[Path, ...]:
    """Several paths with commas between them, or one that has a comma in it."""
    if isinstance(value, str):
        names = (value,) if Path(value).exists() else texts(value)
        if "" in (value, *names):
            raise ValueError(f"{value or '(nothing)'} lacks the name of a file")
        return tuple(Path(name) for name in names)
    return (value,) if isinstance(value, Path) else tuple(value)  # type: ignore[arg-type]


def _pattern(value: object) -> object:
    """A regular expression, as it was written."""
    if isinstance(value, str):
        try:
            re.compile(value)
        except re.error as error:
            raise ValueError(f"{value} is not a regular expression: {error}") from None
    return value


_OF_FILES = frozenset({"PATH", "PATH|-", "FILE", "FILE,…", "LOG"})
"""What stands for the value of an option that names a file."""

Sort = Literal["total", "calls", "avg", "med", "min", "max", "std", "name"]


@dataclass(frozen=True)
class Selection:
    """Which part of a profile is shown, and in which order."""

    range: str | None = None
    """Only what was launched in ranges of this name, or below modules of this path; None is everything."""
    kernel: re.Pattern[str] | None = None
    """Only kernels, or on a CPU operators, in whose whole name this is found."""
    top: int = 20
    """As many rows of a long table; 0 is all of them."""
    sort: Sort = "total"


class RunOptions(BaseModel):
    """Where results go, what is shown, and when to give up."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    out: Annotated[Path, Option(metavar="DIR", panel=OUTPUT)] = Field(
        default=Path("runs"), description="Directory for the log and the record."
    )
    json_path: Annotated[str | None, Option(flags=("--json",), metavar="PATH|-", panel=OUTPUT)] = Field(
        default=None, description="Also write the record here; - writes it, and nothing else, to stdout."
    )
    format: Annotated[Format, Option(metavar="NAME", panel=OUTPUT)] = Field(
        default="terminal", description="Tables as terminal, markdown, csv or latex."
    )
    tables: Annotated[tuple[str, ...], BeforeValidator(texts), Option(metavar="NAME,…", panel=OUTPUT)] = Field(
        default=(), description="Tables to show instead of those that the axes imply; a wrong name lists all."
    )
    columns: Annotated[tuple[str, ...], BeforeValidator(texts), Option(metavar="NAME,…", panel=OUTPUT)] = Field(
        default=(),
        description="Columns to show; with a + in front, beside those that are shown anyway. A wrong name lists all.",
    )
    no_live: Annotated[bool, Option(panel=OUTPUT)] = Field(
        default=False, description="One line per finished cell instead of the dashboard."
    )
    quiet: Annotated[bool, Option(flags=("--quiet", "-q"), panel=OUTPUT)] = Field(
        default=False, description="No progress at all, only the result."
    )
    debug: Annotated[bool, Option(panel=OUTPUT)] = Field(default=False, description="Show tracebacks.")
    plan: Annotated[bool, Option(panel=EXECUTION)] = Field(
        default=False, description="Show cells, parameters, FLOPs and predicted memory; run nothing."
    )
    resume: Annotated[Path | None, Option(metavar="LOG", panel=EXECUTION)] = Field(
        default=None, description="Continue a log: run only what is missing or failed in it."
    )
    timeout_s: Annotated[float, Option(flags=("--timeout",), metavar="S", panel=EXECUTION)] = Field(
        default=1800.0, gt=0, description="Give a cell up when its worker has said nothing for this many seconds."
    )
    no_skip: Annotated[bool, Option(panel=EXECUTION)] = Field(
        default=False, description="Also run cells larger than one that ran out of memory."
    )
    force: Annotated[bool, Option(panel=EXECUTION)] = Field(
        default=False, description="Also start cells that are predicted not to fit into memory."
    )

    log_name: str | None = None
    """The log's name without its ending; None makes one of the time and the command. Not on the command line."""
    ceilings: bool = True
    """Whether the worker measures the matrix product that rates are held against. Not on the command line."""

    @property
    def selection(self) -> Selection:
        """Which part of the result is shown: all of it, where there are no options to choose with."""
        return Selection()

    @model_validator(mode="after")
    def _refuse_one_file_for_two(self) -> Self:
        """What is written last would be all that is left; what is read would be lost."""
        taken: dict[Path, str] = {}
        for name, path in self._files():
            first = taken.setdefault(path.resolve(), name)
            if first != name:
                raise ValueError(f"{name} {path} is the file of {first}: give each its own")
        return self

    def _files(self) -> Iterator[tuple[str, Path]]:
        """The files that are read, then those that are written, each with the option that names it."""
        fields = sorted(type(self).model_fields, key=lambda field: field not in ("source", "resume"))
        for field in fields:
            option, value = option_of(type(self).model_fields[field]), getattr(self, field)
            if option.metavar in _OF_FILES and value not in (None, "-"):
                for path in value if isinstance(value, tuple) else (value,):
                    yield option_name(type(self), field), Path(path)


class SavedOptions(RunOptions):
    """Where finished runs are shown from, by commands that show no other files."""

    source: Annotated[Path | None, Option(flags=("--from",), metavar="FILE", panel=OUTPUT)] = Field(
        default=None, description="Show a finished log or record instead of measuring. Needs no torch."
    )


class TimeOptions(SavedOptions):
    """What goes with timing alone."""

    simulate: Annotated[str | None, Option(metavar="GPU", panel=EXECUTION)] = Field(
        default=None, description="With --plan: hold the predicted memory against this GPU, which need not be here."
    )


class MemoryOptions(RunOptions):
    """What becomes of the allocations of each cell; with several cells, each file's name says which it is of."""

    source: Annotated[Path | None, Option(flags=("--from",), metavar="FILE", panel=OUTPUT)] = Field(
        default=None, description="Show a finished log or record, or a snapshot, instead of measuring. Needs no torch."
    )
    snapshot: Annotated[Path | None, Option(metavar="PATH", panel=OUTPUT)] = Field(
        default=None, description="Write the allocations as a pickle that the public memory viewer opens."
    )
    figure: Annotated[Path | None, Option(metavar="PATH", panel=OUTPUT)] = Field(
        default=None, description="Draw memory over time by category: .png, .svg or .pdf."
    )
    page: Annotated[Path | None, Option(metavar="PATH", panel=OUTPUT)] = Field(
        default=None, description="Write a page, for offline use, that zooms to every single allocation and its stack."
    )


class AccumOptions(SavedOptions):
    """What else there is to see of experiments on rounding."""

    figure: Annotated[Path | None, Option(metavar="PATH", panel=OUTPUT)] = Field(
        default=None, description="Draw the experiment, of several each into a file of its own: .png, .svg or .pdf."
    )


class AttentionOptions(SavedOptions):
    """What else there is to see of a sweep of attention."""

    figure: Annotated[Path | None, Option(metavar="PATH", panel=OUTPUT)] = Field(
        default=None, description="Draw times and memory over the sequence length: .png, .svg or .pdf."
    )
    heat_map: Annotated[Path | None, Option(metavar="PATH", panel=OUTPUT)] = Field(
        default=None, description="Draw them over head dimension and sequence length: .png, .svg or .pdf."
    )


class ProfileOptions(RunOptions):
    """Which part of a profile is shown, and what becomes of the trace; with several cells, the names of files say which
    each is of."""

    source: Annotated[
        tuple[Path, ...], BeforeValidator(_files), Option(flags=("--from",), metavar="FILE,…", panel=OUTPUT)
    ] = Field(
        default=(),
        description="Show traces instead of profiling: .json, .json.gz, .nsys-rep or .sqlite of anyone's, several for "
        "several ranks, or the directory they are in; or a finished log or record. Needs no torch.",
    )
    range: Annotated[str | None, Option(metavar="NAME", panel=VIEW)] = Field(
        default=None, description="Show only what one range launched: forward, or layers.3.attention, or softmax."
    )
    kernel: Annotated[str | None, BeforeValidator(_pattern), Option(metavar="REGEX", panel=VIEW)] = Field(
        default=None, description="Show only kernels (on a CPU, operators) in whose whole name this is found."
    )
    top: Annotated[int, Option(metavar="N", panel=VIEW)] = Field(
        default=20, ge=0, description="As many rows of a long table; 0 shows all."
    )
    sort: Annotated[Sort, Option(metavar="COLUMN", panel=VIEW)] = Field(
        default="total", description=f"Order of the kernels: {', '.join(get_args(Sort))}."
    )
    trace: Annotated[Path | None, Option(metavar="PATH", panel=OUTPUT)] = Field(
        default=None,
        description="Keep the trace: .json or .json.gz, which open in Perfetto; with nsys .nsys-rep or .sqlite.",
    )
    window: Annotated[Path | None, Option(metavar="PATH", panel=OUTPUT)] = Field(
        default=None,
        description="Write the part of the trace that --range is about, or as much of a step as browsers bear: at most "
        "100 MB, as .json or .json.gz.",
    )
    flame: Annotated[Path | None, Option(metavar="PATH", panel=OUTPUT)] = Field(
        default=None, description="Draw where the time goes, module by module: .svg or .html."
    )

    @property
    def selection(self) -> Selection:
        """What is shown of the profile."""
        kernel = re.compile(self.kernel) if self.kernel is not None else None
        return Selection(self.range, kernel, self.top, self.sort)
