"""The directory that an experiment leaves: a manifest, and a log, a record and files for each of its runs."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from sysbench.errors import OutputError, UsageError
from sysbench.log import manifest
from sysbench.log.manifest import Manifest, RunEntry
from sysbench.log.storage import cannot_write, make_directory, write_atomically


@dataclass
class ExperimentDirectory:
    """A directory and what its manifest says; every change is on disk when it has been made."""

    path: Path
    manifest: Manifest

    def entry(self, name: str) -> RunEntry:
        """What the manifest has of a run by now."""
        return next(each for each in self.manifest.runs if each.name == name)

    def note(self, entry: RunEntry) -> None:
        """Put an entry in the place of the one with its name; raises OutputError."""
        runs = tuple(entry if each.name == entry.name else each for each in self.manifest.runs)
        self.manifest = self.manifest.model_copy(update={"runs": runs})
        self.save()

    def save(self) -> None:
        """Write the manifest; raises OutputError."""
        content = self.manifest.model_dump_json(indent=1).encode() + b"\n"
        write_atomically(self.path / manifest.FILE_NAME, content)

    def log_of(self, entry: RunEntry) -> Path | None:
        """The log of a run that has been begun; one without a whole first line says nothing, and goes."""
        log = self.path / entry.log
        if not log.is_file():
            return None
        with log.open("rb") as file:
            if file.readline().endswith(b"\n"):
                return log
        log.unlink()
        return None


@contextmanager
def created(out: Path, name: str, content: Manifest) -> Iterator[ExperimentDirectory]:
    """A new directory below `out`, called after the time and the experiment, for us alone; raises OutputError."""
    make_directory(out)
    stem = f"{datetime.now(UTC):%Y-%m-%dT%H-%M-%S}-{name}"
    path = next(path for number in count(1) if (path := _claimed(out / (stem if number == 1 else f"{stem}-{number}"))))
    with _locked(path):
        directory = ExperimentDirectory(path, content)
        directory.save()
        yield directory


@contextmanager
def reopened(path: Path) -> Iterator[ExperimentDirectory]:
    """The directory of an earlier run; raises LogError when it is none, UsageError while another process is at it."""
    content = manifest.read(path)
    with _locked(path):
        yield ExperimentDirectory(path, content)


def _claimed(path: Path) -> Path | None:
    try:
        path.mkdir()
    except FileExistsError:
        return None
    except OSError as error:
        raise cannot_write(path, error) from error
    return path


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep a second process out: its runs would be measured beside ours."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise OutputError(f"cannot open {path}: {error.strerror}") from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"{path} is being written by another sysbench that is still running") from None
        except OSError:
            pass  # some network file systems have no locks
        yield
    finally:
        os.close(descriptor)
