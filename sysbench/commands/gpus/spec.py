"""Spec of `sysbench gpus`."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from sysbench.spec.options import Option
from sysbench.spec.run import Columns, Debug, JsonPath, Shown


class GpusSpec(BaseModel):
    """Which GPU to describe, and how to show it."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    name: Annotated[str | None, Option(positional=True, metavar="[GPU]")] = Field(
        default=None, description="Show every number of this GPU with its source: h100, 4090, a100-80gb."
    )
    json_path: JsonPath = Field(
        default=None, description="Also write what is shown to this file; - writes only that, to stdout."
    )
    format: Shown = "terminal"
    columns: Columns = ()
    debug: Debug = False
