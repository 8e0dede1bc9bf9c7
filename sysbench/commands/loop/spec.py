"""Spec and cell of a loop that a program measures itself, and the options of `sysbench loop`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from sysbench.errors import unknown
from sysbench.spec.axes import Texts, parse_share
from sysbench.spec.axis import Axis
from sysbench.spec.cell import RunCell, RunSpec, parse_devices
from sysbench.spec.options import Option
from sysbench.spec.quantities import Share, Size, Steps, stored_unless
from sysbench.spec.run import OUTPUT, RUNS, Columns, Debug, JsonPath, Selection, Shown, run_names

STEP = "step"
"""The name of the whole step, which no phase can have."""

MAX_NAME_CHARACTERS = 100
"""Maximum length of the name of a loop or a phase."""


def validated_name(what: str, name: object) -> str:
    """Return the name of a loop or a phase; raises ValueError unless it is one line of printable text."""
    if not isinstance(name, str) or not name.strip():
        raise ValueError(f"the name of {what} must be a non-empty string, not {name!r}")
    if not name.isprintable() or len(name) > MAX_NAME_CHARACTERS:
        raise ValueError(f"the name of {what} must be one line of at most {MAX_NAME_CHARACTERS} printable characters")
    return name


def validated_phase_name(name: object, declared: Iterable[str] = ()) -> str:
    """Return the name of a phase; raises ValueError if it is invalid, reserved, or not in a non-empty `declared`."""
    found = validated_name("a phase", name)
    if found == STEP:
        raise ValueError(f"a phase cannot be called {STEP}: that is the whole step")
    if declared and found not in declared:
        raise ValueError(unknown(found, "a phase that was declared", declared))
    return found


def _validated_phases(names: object) -> object:
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise ValueError(f"{names!r} is not a list of names")
    listed = [validated_phase_name(name) for name in names]
    for name in listed:
        if listed.count(name) > 1:
            raise ValueError(f"names {name} twice")
    return tuple(listed)


Name = Annotated[str, AfterValidator(lambda name: validated_name("a loop", name))]


class LoopCell(RunCell):
    """One loop, measured by the process that runs it."""

    kind: Literal["loop"] = "loop"
    name: Annotated[str, Axis("work", title="loop")]
    by: Annotated[Literal["measure", "record"], Axis("setting", comparison="controlled")]
    """measure  sysbench called the step, whose time is the sum of its phases if each phase is a separate function
    record   the program ran its own loop; a step lasts from its first phase to the first phase of the next step
    """
    tokens: Annotated[
        Size | None,
        Axis("setting", comparison="controlled", phrase="{} tokens"),
    ] = stored_unless(None)
    """Tokens per step; None if unknown."""
    warmup: Steps
    steps: Size | None = stored_unless(None)
    """Number of steps to measure; None for a recording, where the program decides."""
    until: Share | None
    max_steps: Size
    """Largest number of measured steps."""
    sync: Literal["phase", "step"]

    @property
    def title(self) -> str:
        return self.name


class LoopSpec(RunSpec):
    """The requested measurement.

    The defaults are in `sysbench.api`, because these fields are not command-line options.
    """

    kind: Literal["loop"] = "loop"
    name: Name
    by: Literal["measure", "record"]
    device: Annotated[tuple[str, ...], BeforeValidator(parse_devices), Field(min_length=1, max_length=1)]
    phases: Annotated[tuple[str, ...], BeforeValidator(_validated_phases)]
    """The allowed phases, in order; empty if all names are allowed."""
    tokens: Size | None
    warmup: Steps
    steps: Size | None
    until: Annotated[Share | None, BeforeValidator(parse_share)]
    max_steps: Size
    sync: Literal["phase", "step"]

    @property
    def python_call(self) -> str:
        """The API call in the user's program, as text."""
        return f"sysbench.{self.by}(name={self.name!r})"

    def cells(self) -> Iterator[LoopCell]:
        fields = {name: getattr(self, name) for name in LoopCell.model_fields if name not in ("device", "threads")}
        yield LoopCell(device=self.device[0], **fields | {"max_steps": max(self.max_steps, self.steps or 1)})


class LoopOptions(BaseModel):
    """The loop to show, and how to show it."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    file: Annotated[Path | None, Option(positional=True, metavar="FILE", completions=run_names)] = Field(
        default=None, description="The record to show: its path, or its name in --runs, such as latest."
    )
    source: Annotated[Path | None, Option(flags=("--from",), metavar="FILE", panel=OUTPUT, completions=run_names)] = (
        Field(default=None, description="The record to show, as in other commands.")
    )
    runs: Annotated[Path, Option(metavar="DIR", panel=OUTPUT)] = Field(
        default=RUNS, description="Directory in which run names are looked up."
    )
    json_path: JsonPath = Field(
        default=None, description="Also write the record to this file; - writes only the record to stdout."
    )
    format: Shown = "terminal"
    tables: Annotated[Texts, Option(metavar="NAME,…", panel=OUTPUT)] = Field(
        default=(), description="Tables to show: phases, memory."
    )
    columns: Columns = ()
    debug: Debug = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.file is None) == (self.source is None):
            raise ValueError("pass exactly one FILE that sysbench.measure or sysbench.record wrote")
        return self

    @property
    def record_path(self) -> Path:
        """The record to show, given as an argument or with --from."""
        return self.file or self.source or Path()

    @property
    def selection(self) -> Selection:
        return Selection()
