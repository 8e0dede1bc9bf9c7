"""The manifest of an experiment's directory: the runs of the experiment, in order, with their options.

The outcome of a run is in its log. A run without one has not started, was left out, or failed before (`failure`).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, ValidationError

from sysbench.command import Kind, kinds
from sysbench.errors import LogError
from sysbench.log.storage import cannot_read
from sysbench.spec.frozen import Frozen
from sysbench.spec.quantities import stored_unless

FILE_NAME = "manifest.json"
MANIFEST_VERSION = 1

Here = Literal["as written", "changed", "simulated", "left out"]
"""as written  with the options of the experiment, or those that the user gave instead
changed     with other options that the experiment lists for machines like this one, usually smaller
simulated   for a GPU that is not present
left out    not run
"""


class RunEntry(Frozen):
    """One run of an experiment."""

    name: str
    """Unique in the experiment, and valid as a file name."""
    part: str
    """Title of the experiment file that defines the run."""
    title: str
    question: str = ""
    command: Kind
    options: dict[str, str] = Field(default_factory=dict)
    """Options of the command by long name: {"size": "tiny", "ctx": "64"}; a switch has the value ""."""
    here: Here = "as written"
    why: str = ""
    """Reason why the run differs from the experiment file, as a sentence without a full stop; empty if it does not."""
    files: tuple[str, ...] = ()
    """Names of the figures, pages, snapshots and traces that the run wrote to the directory."""
    failure: str | None = None
    """Error message, if the run ended before it created a log; otherwise None."""

    @property
    def log(self) -> str:
        """File name of the run's log; the file exists once the run has started."""
        return f"{self.name}.jsonl"

    @property
    def record(self) -> str:
        """File name of the run's record; the file exists once the run has finished."""
        return f"{self.name}.json"

    @property
    def command_line(self) -> str:
        """The command line that repeats this run without the rest of the experiment."""
        from sysbench.spec.command_options import keys_of

        words = ["sysbench", self.command]
        keys = keys_of(self.command) if self.command in kinds() else {}
        for name, value in self.options.items():
            flag = [] if name in keys and keys[name].is_positional else [f"--{name}"]
            words += [*flag, *([value] if value else [])]
        return shlex.join(words)


class _Versioned(BaseModel):
    manifest_version: int = MANIFEST_VERSION
    sysbench_version: str = "unknown"


class Manifest(Frozen):
    """The manifest of an experiment that was run in one directory."""

    manifest_version: int = MANIFEST_VERSION
    sysbench_version: str
    experiment: str
    """Argument of `sysbench run`: the name of a built-in experiment, or the absolute path of a file."""
    title: str
    question: str = ""
    overrides: dict[str, str] = Field(default_factory=dict)
    plan_for: str | None = stored_unless(None)
    """The GPU that the experiment was predicted for, as on the command line; None if it was measured."""
    started_at: float
    runs: tuple[RunEntry, ...]
    """Runs in the order of execution, which is also the order in a report."""

    @property
    def experiment_name(self) -> str:
        """Name of the experiment, without the directory and suffix of its file."""
        return Path(self.experiment).stem

    def runs_without(self, file_names: Iterable[str]) -> list[RunEntry]:
        """Return the runs that have neither their log nor their record among these files of the directory."""
        present = set(file_names)
        return [entry for entry in self.runs if not present & {entry.log, entry.record}]


def is_manifest(directory: Path) -> bool:
    """Whether the directory belongs to an experiment, and thus has a manifest."""
    return (directory / FILE_NAME).is_file()


def read(directory: Path) -> Manifest:
    """Read the manifest in a directory; raises LogError if there is none, or if this version cannot read it."""
    path = directory / FILE_NAME
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise LogError(f"{directory} is not an experiment directory: it has no {FILE_NAME}") from None
    except OSError as error:
        raise cannot_read(path, error) from error
    try:
        version = _Versioned.model_validate_json(content)
        if version.manifest_version > MANIFEST_VERSION:
            raise LogError(
                f"{path} was written by sysbench {version.sysbench_version} with manifest version "
                f"{version.manifest_version}; this version reads up to {MANIFEST_VERSION}"
            )
        return Manifest.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise LogError(f"{path} is not a sysbench manifest: {first['msg']} at {where or 'top level'}") from None
