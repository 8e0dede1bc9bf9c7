"""Options of `sysbench check`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from sysbench.spec import hardware
from sysbench.spec.axes import integers
from sysbench.spec.options import Option
from sysbench.spec.quantities import Size, TimeLimit, time_limit_word
from sysbench.spec.ranks import NODE_RANKS
from sysbench.spec.run import OUTPUT, Columns, Debug, JsonPath, Shown

QUESTION = "Question"


def _paths(value: object) -> object:
    return tuple(map(Path, value)) if isinstance(value, list) else value


class CheckSpec(BaseModel):
    """Which files to check, and for which GPUs."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    files: Annotated[
        tuple[Path, ...], BeforeValidator(_paths), Option(positional=True, repeated=True, metavar="FILE…")
    ] = Field(default=(), description="Training configs (YAML, JSON, TOML), and the accelerate or DeepSpeed config.")
    gpus: Annotated[
        tuple[str, ...],
        BeforeValidator(hardware.parse_gpus_or_stored),
        Option(flags=("--on",), metavar="GPU,…", panel=QUESTION),
    ] = Field(default=(), description="GPUs to answer for: 4090,a100-40gb, or 24GiB. Default: this machine's, or h100.")
    ranks: Annotated[tuple[Size, ...], BeforeValidator(integers(1)), Option(metavar="N,…", panel=QUESTION)] = Field(
        default=(), description="Numbers of GPUs to answer for: 1,2,8. Default: what the files say, else 1."
    )
    price: Annotated[hardware.Prices, Option(metavar="GPU=PRICE,…", panel=QUESTION)] = Field(
        default={}, description="Price of a GPU hour in any currency, if the file has its number of steps: h100=2.5."
    )
    try_compile: Annotated[bool, Option(panel=QUESTION)] = Field(
        default=False,
        description="Where a file compiles the step and it does not fit uncompiled, have torch's own compiler say what "
        "it needs: minutes for models of billions of parameters.",
    )
    max_time: Annotated[TimeLimit, Option(metavar="TIME", panel=QUESTION, word=time_limit_word)] = Field(
        default=120.0, description="Look for changes for at most about this long, after the verdict: 30s, 3m, or none."
    )
    write: Annotated[Path | None, Option(metavar="FILE", panel=OUTPUT)] = Field(
        default=None, description="Write a copy of the config with the first change that fits, comments kept."
    )
    out: Annotated[Path, Option(metavar="DIR", panel=OUTPUT)] = Field(
        default=Path("runs"), description="Directory for the logs and records of sysbench fit."
    )
    quiet: Annotated[bool, Option(flags=("--quiet", "-q"), panel=OUTPUT)] = Field(
        default=False, description="Show no progress, only the result."
    )
    json_path: JsonPath = Field(
        default=None, description="Also write what is shown to this file; - writes only that, to stdout."
    )
    format: Shown = "terminal"
    columns: Columns = ()
    debug: Debug = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.files:
            raise ValueError("FILE is missing: name a training config, such as lora.yml")
        if beyond := [count for count in self.ranks if count > NODE_RANKS]:
            raise ValueError(f"--ranks {beyond[0]}: no network between nodes is known; at most {NODE_RANKS}")
        return self
