"""Spec of `sysbench history`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from sysbench.spec.options import Option
from sysbench.spec.run import OUTPUT, RUNS, Debug, JsonPath, Shown, run_names


class HistorySpec(BaseModel):
    """Selection of earlier runs."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    name: Annotated[str | None, Option(positional=True, metavar="[NAME]", completions=run_names)] = Field(
        default=None,
        description="Show only this run: its path, the beginning of its name, latest, latest~1, or time:latest.",
    )
    runs: Annotated[Path, Option(metavar="DIR", panel=OUTPUT)] = Field(
        default=RUNS, description="Directory of the runs."
    )
    json_path: JsonPath = Field(
        default=None, description="Also write what is shown to this file; - writes only that, to stdout."
    )
    format: Shown = "terminal"
    debug: Debug = False
