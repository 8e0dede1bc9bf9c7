"""What lies in the directory of an experiment: which of its runs is which, in which order, and what it was asked.

How a run went is not said here: its log says that. A run that is not in the directory has not been begun, was left out
(`here` is "left out"), or failed before its log had begun (`failure`).
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, ValidationError

from sysbench.command import Kind
from sysbench.errors import LogError
from sysbench.spec.frozen import Frozen

FILE_NAME = "manifest.json"
MANIFEST_VERSION = 1

Here = Literal["as written", "changed", "simulated", "left out"]
"""as written  with the options that the experiment names, or that the user gave instead
changed     with other options, which the experiment names for machines like this one: smaller, mostly
simulated   for a GPU that is not here
left out    not at all
"""


class RunEntry(Frozen):
    """One run of an experiment."""

    name: str
    """Unique in the experiment, and fit for a file's name."""
    part: str
    """The title of the experiment that it is from, where one is put together of several."""
    title: str
    question: str = ""
    """What it is meant to answer; empty where nothing is said."""
    command: Kind
    options: dict[str, str] = Field(default_factory=dict)
    """What the command is given, by long name: {"size": "tiny", "ctx": "64"}; a switch has no word, ""."""
    here: Here = "as written"
    why: str = ""
    """Why it is not as written, in a sentence without its full stop; empty where it is."""
    files: tuple[str, ...] = ()
    """Pictures, pages, snapshots and traces that it left in the directory, by their names there."""
    failure: str | None = None
    """The line with which it ended before it could say anything itself; None for every run that has a log."""

    @property
    def log(self) -> str:
        """The name of its log in the directory, where it has been begun."""
        return f"{self.name}.jsonl"

    @property
    def record(self) -> str:
        """The name of its record in the directory, where it has come to an end."""
        return f"{self.name}.json"

    @property
    def command_line(self) -> str:
        """What would repeat it alone."""
        words = ["sysbench", self.command]
        for name, value in self.options.items():
            # Accumulation's experiments are named without a flag.
            flag = [] if (self.command, name) == ("accum", "experiment") else [f"--{name}"]
            words += [*flag, *([value] if value else [])]
        return shlex.join(words)


class _Versioned(BaseModel):
    """What every version of a manifest says of itself."""

    manifest_version: int = MANIFEST_VERSION
    sysbench_version: str = "unknown"


class Manifest(Frozen):
    """An experiment as it was carried out in one directory."""

    manifest_version: int = MANIFEST_VERSION
    sysbench_version: str
    experiment: str
    """What `sysbench run` was given: the name of one that ships, or the absolute path of a file."""
    title: str
    question: str = ""
    overrides: dict[str, str] = Field(default_factory=dict)
    """The options given on the command line for all of its runs, by long name."""
    started_at: float
    """Seconds since 1970."""
    runs: tuple[RunEntry, ...]
    """In the order in which they are carried out, and in which a document has them."""


def is_manifest(directory: Path) -> bool:
    """Whether this is the directory of an experiment."""
    return (directory / FILE_NAME).is_file()


def read(directory: Path) -> Manifest:
    """The manifest in a directory; raises LogError when there is none, or one that this version cannot read."""
    path = directory / FILE_NAME
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise LogError(f"{directory} is not the directory of an experiment: it has no {FILE_NAME}") from None
    except OSError as error:
        raise LogError(f"cannot read {path}: {error.strerror}") from error
    try:
        version = _Versioned.model_validate_json(content)
        if version.manifest_version > MANIFEST_VERSION:
            raise LogError(
                f"{path} was written by sysbench {version.sysbench_version} in version {version.manifest_version}; "
                f"this version reads up to {MANIFEST_VERSION}"
            )
        return Manifest.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise LogError(f"{path} is not a manifest of sysbench: {first['msg']} at {where or 'its top'}") from None
