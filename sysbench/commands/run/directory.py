"""The directory of an experiment: a manifest, and for each run its log, its record and its other files."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sysbench.errors import OutputError, UsageError
from sysbench.log import manifest, storage
from sysbench.log.manifest import Manifest, RunEntry
from sysbench.log.storage import reason, write_atomically


@dataclass
class ExperimentDirectory:
    """The directory of an experiment, with its manifest; changes to the manifest are written to disk immediately."""

    path: Path
    manifest: Manifest

    def entry(self, name: str) -> RunEntry:
        return next(run for run in self.manifest.runs if run.name == name)

    def update_entry(self, entry: RunEntry) -> None:
        """Replace the manifest entry that has the same name, and write the manifest; raises OutputError on failure."""
        runs = tuple(entry if run.name == entry.name else run for run in self.manifest.runs)
        self.manifest = self.manifest.model_copy(update={"runs": runs})
        self.save()

    def save(self) -> None:
        content = self.manifest.model_dump_json(indent=1).encode() + b"\n"
        write_atomically(self.path / manifest.FILE_NAME, content)

    def log_of(self, entry: RunEntry) -> Path | None:
        """Return the log of a run; None if the run has not started. A log without a complete first line is removed."""
        log = self.path / entry.log
        if not log.is_file():
            return None
        with log.open("rb") as file:
            if file.readline().endswith(b"\n"):
                return log
        log.unlink()
        return None


@contextmanager
def create_directory(out: Path, name: str, content: Manifest) -> Iterator[ExperimentDirectory]:
    """Create and lock a new directory in `out`, named after the time and `name`; raises OutputError on failure."""
    path = storage.create_directory(out, name)
    with _lock(path):
        directory = ExperimentDirectory(path, content)
        directory.save()
        yield directory


@contextmanager
def open_directory(path: Path) -> Iterator[ExperimentDirectory]:
    """Open and lock the directory of an earlier experiment; raises LogError without a manifest."""
    content = manifest.read(path)
    with _lock(path):
        yield ExperimentDirectory(path, content)


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Lock the directory against a second process, whose runs would disturb the measurements."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise OutputError(f"cannot open {path}: {reason(error)}") from error
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
