"""Spec of `sysbench models`."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from sysbench.spec import published
from sysbench.spec.options import Option
from sysbench.spec.run import Columns, Debug, JsonPath, Shown


class ModelsSpec(BaseModel):
    """Which published model to describe, and how to show it."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    name: Annotated[str | None, Option(positional=True, metavar="[MODEL]", values=published.names())] = Field(
        default=None, description="Show every field of this model's config: llama-3.1-8b, google/gemma-2-9b."
    )
    json_path: JsonPath = Field(
        default=None, description="Also write what is shown to this file; - writes only that, to stdout."
    )
    format: Shown = "terminal"
    columns: Columns = ()
    debug: Debug = False
