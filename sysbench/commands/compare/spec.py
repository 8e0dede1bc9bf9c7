"""Options of `sysbench compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from sysbench.spec.axes import Texts, parse_share
from sysbench.spec.options import Option
from sysbench.spec.run import OUTPUT, Debug, JsonPath, Shown, run_names

INPUTS = "Inputs"
JUDGEMENT = "Judgement"
MEASUREMENT = "Measuring with --ab"

Export = Literal["bmf", "gha", "junit"]
"""Formats that CI services read."""


class CompareOptions(BaseModel):
    """Options of a comparison: inputs, rules for verdicts, and output."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    a: Annotated[str | None, Option(positional=True, metavar="A", completions=run_names)] = Field(
        default=None,
        description="The baseline: a record, a log, a directory of runs, or the name of an earlier run in --runs "
        "(the beginning of its file name, latest, latest~1, or time:latest for the latest run of that command); "
        "or a trace or a memory snapshot, to compare with another one.",
    )
    b: Annotated[str | None, Option(positional=True, metavar="B", completions=run_names)] = Field(
        default=None,
        description="The run to compare with it; not needed if A is the directory of an earlier --ab.",
    )
    ab: Annotated[tuple[str, str] | None, Option(flags=("--ab",), pair=True, metavar="SPEC SPEC", panel=INPUTS)] = (
        Field(
            default=None,
            description='Measure both now, alternating in fresh processes: "time --size small" "time --size small '
            '--compile". Works for time and attention; time is the default.',
        )
    )
    across: Annotated[Texts, Option(metavar="AXIS,…", panel=INPUTS)] = Field(
        default=(),
        description="Compare A and B although they differ in this axis, which is an error otherwise: precision, "
        "batch, mode, device, simulate, machine, …; an unknown name lists all.",
    )
    runs: Annotated[Path, Option(metavar="DIR", panel=INPUTS)] = Field(
        default=Path("runs"), description="Directory in which to look for earlier runs by name."
    )
    margin: Annotated[float, BeforeValidator(parse_share), Option(metavar="SHARE", panel=JUDGEMENT)] = Field(
        default=0.01, gt=0, lt=1, description="Report SAME if the difference is significantly smaller than this."
    )
    gate: Annotated[float | None, BeforeValidator(parse_share), Option(metavar="SHARE", panel=JUDGEMENT)] = Field(
        default=None,
        ge=0,
        lt=1,
        description="Exit with 3 if B is significantly slower than A, or needs significantly more memory, by more "
        "than this: 3%.",
    )
    strict: Annotated[bool, Option(panel=JUDGEMENT)] = Field(
        default=False, description="With --gate: exit with 3 also where a regression cannot be ruled out (AMBIGUOUS)."
    )
    # 14 rounds find a difference of 3% in 99 of 100 comparisons if both processes and steps vary by 1%; 12 find it in
    # 95, 10 in 77 (simulated, see tests/statistics/test_verdict.py).
    rounds: Annotated[int, Option(metavar="N", panel=MEASUREMENT)] = Field(
        default=14,
        ge=1,
        le=1000,
        description="With --ab: number of rounds; each runs A and B once, in fresh processes.",
    )
    out: Annotated[Path, Option(metavar="DIR", panel=MEASUREMENT)] = Field(
        default=Path("runs"), description="With --ab: directory for the logs of all rounds."
    )
    timeout_s: Annotated[float, Option(flags=("--timeout",), metavar="S", panel=MEASUREMENT)] = Field(
        default=1800.0, gt=0, description="With --ab: abort a cell after S seconds of silence."
    )
    json_path: JsonPath = Field(
        default=None,
        description="Also write the complete result as JSON to this file; - writes only the JSON, to stdout.",
    )
    format: Shown = "terminal"
    tables: Annotated[Texts, Option(metavar="NAME,…", panel=OUTPUT)] = Field(
        default=(), description="Tables to show instead of the default ones; an unknown name lists all."
    )
    export: Annotated[Export | None, Option(metavar="NAME", panel=OUTPUT)] = Field(
        default=None,
        description="Write B's numbers to stdout for CI, instead of tables: bmf (Bencher), gha "
        "(github-action-benchmark, customSmallerIsBetter), or junit (a test per cell; needs --gate).",
    )
    quiet: Annotated[bool, Option(flags=("--quiet", "-q"), panel=OUTPUT)] = Field(
        default=False, description="Show no progress, and print the result in one line."
    )
    debug: Debug = False

    @model_validator(mode="after")
    def _check(self) -> CompareOptions:
        if self.ab is not None and self.a is not None:
            raise ValueError("--ab measures both arms now: it cannot be combined with earlier runs")
        if self.ab is None and self.a is None:
            raise ValueError('name what to compare: two runs, or --ab "SPEC" "SPEC"')
        if self.strict and self.gate is None:
            raise ValueError("--strict decides when a gate fails: add --gate")
        if self.export == "junit" and self.gate is None:
            raise ValueError("--export junit reports which cells fail a gate: add --gate")
        if self.export is not None and self.json_path == "-":
            raise ValueError("--export and --json - both write to stdout: give --json a path")
        return self
