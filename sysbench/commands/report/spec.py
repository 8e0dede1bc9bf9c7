"""Spec of `sysbench report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from sysbench.spec.axes import split_words
from sysbench.spec.options import Option
from sysbench.spec.run import OUTPUT, Debug, run_names

SUFFIXES = (".html", ".md", ".tex", ".csv")
"""Suffixes of reports, one for each format."""


class ReportSpec(BaseModel):
    """Sources, contents and output files of a report."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True, validate_default=True)

    source: Annotated[
        tuple[str, ...],
        Option(metavar="LOG|DIR…", positional=True, repeated=True, completions=run_names),
    ] = Field(
        default=(),
        description="Logs, records, directories of them, names of earlier runs (latest, latest~1, time:latest), traces "
        "and memory snapshots. Without any: everything in runs/.",
    )
    output: Annotated[
        tuple[Path, ...],
        Option(flags=("--output", "-o"), metavar="FILE", panel=OUTPUT, repeated=True),
    ] = Field(
        default=(),
        description="Write the report: .html is one page for offline use; .md and .tex come with picture files; "
        ".csv is one long table. May be repeated. Without it, the terminal shows findings, tables and "
        "cautions.",
    )
    title: Annotated[str | None, Option(metavar="TEXT", panel=OUTPUT)] = Field(
        default=None, description="Title of the report, overriding the experiment's title."
    )
    only: Annotated[tuple[str, ...], BeforeValidator(split_words), Option(metavar="NAME,…", panel=OUTPUT)] = Field(
        default=(), description="Only these runs, by name or by command: time,memory; an unknown name lists all."
    )
    summary: Annotated[bool, Option(panel=OUTPUT)] = Field(
        default=False, description="Only the first page: headline numbers, the main findings, cautions and environment."
    )
    quiet: Annotated[bool, Option(flags=("--quiet", "-q"), panel=OUTPUT)] = Field(
        default=False, description="Do not list the files that were written."
    )
    debug: Debug = False

    @field_validator("output")
    @classmethod
    def _known(cls, paths: tuple[Path, ...]) -> tuple[Path, ...]:
        for path in paths:
            if path.suffix.lower() not in SUFFIXES:
                raise ValueError(f"{path} must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
        return paths

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for path in self.output:
            if self.output.count(path) > 1:
                raise ValueError(f"--output {path} is given twice")
        return self
