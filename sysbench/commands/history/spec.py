"""Spec of `sysbench history`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from sysbench.log.runs import RUNS
from sysbench.spec.options import Option
from sysbench.spec.run import OUTPUT, Debug, JsonPath, Shown

REMOVAL = "Removal"

_AGE = re.compile(r"(\d+)\s*(h|d|w)")
_SECONDS = {"h": 3600, "d": 86_400, "w": 7 * 86_400}


def _age_s(value: object) -> object:
    if not isinstance(value, str):
        return value
    found = _AGE.fullmatch(value.strip())
    if found is None:
        raise ValueError(f"{value or '(nothing)'} is not an age: write 30d, 12h or 8w")
    return int(found[1]) * _SECONDS[found[2]]


class HistorySpec(BaseModel):
    """Selection of earlier runs, and whether to remove them."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    name: Annotated[str | None, Option(positional=True, metavar="[NAME]")] = Field(
        default=None,
        description="Show only this run: its path, the beginning of its name, latest, latest~1, or time:latest.",
    )
    clean_s: Annotated[
        int | None, BeforeValidator(_age_s), Option(flags=("--clean",), metavar="AGE", panel=REMOVAL)
    ] = Field(default=None, description="Remove runs that are older than this: 30d, 12h or 8w. Asks first.")
    yes: Annotated[bool, Option(panel=REMOVAL)] = Field(default=False, description="Remove without asking.")
    runs: Annotated[Path, Option(metavar="DIR", panel=OUTPUT)] = Field(
        default=RUNS, description="Directory of the runs."
    )
    json_path: JsonPath = Field(
        default=None, description="Also write what is shown to this file; - writes only that, to stdout."
    )
    format: Shown = "terminal"
    debug: Debug = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.name is not None and self.clean_s is not None:
            raise ValueError("--clean selects runs by age: it takes no NAME")
        if self.yes and self.clean_s is None:
            raise ValueError("--yes confirms --clean: without it there is nothing to confirm")
        return self
