"""How a run is carried out and what becomes of its results: options that are the same for every command.

None of them changes what is measured, so none of them is part of a log's identity.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from sysbench.specs.axes import texts
from sysbench.specs.options import Option

Format = Literal["terminal", "markdown", "csv", "latex"]

OUTPUT = "Output"
EXECUTION = "Execution"


class RunOptions(BaseModel):
    """Where results go, what is shown, and when to give up."""

    model_config = ConfigDict(frozen=True, extra="forbid")

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
    source: Annotated[Path | None, Option(flags=("--from",), metavar="FILE", panel=OUTPUT)] = Field(
        default=None, description="Show a finished log or record instead of measuring. Needs no torch."
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


class TimeOptions(RunOptions):
    """What goes with timing alone."""

    simulate: Annotated[str | None, Option(metavar="GPU", panel=EXECUTION)] = Field(
        default=None, description="With --plan: hold the predicted memory against this GPU, which need not be here."
    )


class MemoryOptions(RunOptions):
    """What becomes of the allocations of each cell; with several cells, each file's name says which it is of."""

    snapshot: Annotated[Path | None, Option(metavar="PATH", panel=OUTPUT)] = Field(
        default=None, description="Write the allocations as a pickle that the public memory viewer opens."
    )
    figure: Annotated[Path | None, Option(metavar="PATH", panel=OUTPUT)] = Field(
        default=None, description="Draw memory over time by category: .png, .svg or .pdf."
    )
    page: Annotated[Path | None, Option(metavar="PATH", panel=OUTPUT)] = Field(
        default=None, description="Write a page, for offline use, that zooms to every single allocation and its stack."
    )


class AccumOptions(RunOptions):
    """What else there is to see of experiments on rounding."""

    figure: Annotated[Path | None, Option(metavar="PATH", panel=OUTPUT)] = Field(
        default=None, description="Draw the experiment, of several each into a file of its own: .png, .svg or .pdf."
    )


class AttentionOptions(RunOptions):
    """What else there is to see of a sweep of attention."""

    figure: Annotated[Path | None, Option(metavar="PATH", panel=OUTPUT)] = Field(
        default=None, description="Draw times and memory over the sequence length: .png, .svg or .pdf."
    )
    heat_map: Annotated[Path | None, Option(metavar="PATH", panel=OUTPUT)] = Field(
        default=None, description="Draw them over head dimension and sequence length: .png, .svg or .pdf."
    )
