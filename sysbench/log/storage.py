"""Atomic file writing, temporary directories that do not outlast a killed process for long, and messages for errors."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import time
from contextlib import suppress
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from sysbench.errors import LogError, OutputError

SCRATCH_PREFIX = "sysbench-tmp-"
_YOUNG_S = 60.0
"""A directory that was changed so recently may not be locked yet."""


def reason(error: OSError) -> str:
    """Describe a file error in a few words."""
    return (error.strerror or str(error)).lower()


def cannot_write(path: Path, error: OSError) -> OutputError:
    """Return a one-line error for a failed write."""
    return OutputError(f"cannot write {path}: {reason(error)}")


def cannot_read(path: Path, error: OSError) -> LogError:
    """Return a one-line error for a failed read of a file or a directory."""
    return LogError(f"cannot read {path}: {'no such file' if isinstance(error, FileNotFoundError) else reason(error)}")


def exists(path: Path) -> bool:
    """Whether there is a file or a directory at `path`; raises LogError if that cannot be told."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: no path contains a null character
        return False
    except OSError as error:
        raise cannot_read(path, error) from error
    return True


def make_directory(path: Path) -> None:
    """Create a directory and its missing parents; raises OutputError if that fails."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise OutputError(f"cannot write to {path}: it is a file, not a directory") from None
    except OSError as error:
        raise OutputError(f"cannot create {path}: {reason(error)}") from error


def refuse_uncreatable(path: Path) -> None:
    """Raise OutputError now if creating the directory `path`, or a file in it, is certain to fail later."""
    existing = next(each for each in (path, *path.absolute().parents) if os.path.lexists(each))
    refuse_unwritable(existing / "new")


def create_directory(parent: Path, what: str) -> Path:
    """Create a new directory named after the time and `what`; raises OutputError if that fails."""
    make_directory(parent)
    name = f"{datetime.now(UTC):%Y-%m-%dT%H-%M-%S}-{what}"
    for number in count(1):
        path = parent / (name if number == 1 else f"{name}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            continue
        except OSError as error:
            raise cannot_write(path, error) from error
        return path
    raise AssertionError("there is always a next number")


def refuse_unwritable(path: Path) -> None:
    """Raise OutputError now if writing `path` later is certain to fail: missing directory, no permission."""
    try:
        if path.is_dir():
            raise OutputError(f"cannot write {path}: it is a directory")
        if not path.parent.is_dir():
            raise OutputError(f"cannot write {path}: there is no directory {path.parent}")
        # A regular file is replaced, for which only the permissions of its directory count.
        place = path if _is_written_in_place(path) else Path(os.path.realpath(path)).parent
        needed = os.W_OK if place == path else os.W_OK | os.X_OK
        writable = os.access(place, needed, effective_ids=os.access in os.supports_effective_ids)
    except OSError as error:
        raise cannot_write(path, error) from error
    if not writable:
        raise OutputError(f"cannot write {path}: no permission")


def write_atomically(path: Path, content: bytes) -> None:
    """Replace `path` atomically: even after a crash, either the old file or the new one is on disk, complete.

    A path that is not a regular file (`/dev/stdout`, a named pipe) is written to directly. Raises OutputError if
    writing fails.
    """
    try:
        if _is_written_in_place(path):
            with path.open("ab") as stream:
                stream.write(content)
        else:
            _replace(Path(os.path.realpath(path)), content)  # unlike Path.resolve, it accepts a link to itself
    except OSError as error:
        raise cannot_write(path, error) from error


def _is_written_in_place(path: Path) -> bool:
    return str(path.absolute()).startswith(("/dev/", "/proc/")) or (path.exists() and not path.is_file())


def write_all(descriptor: int, content: bytes) -> None:
    """Write all bytes, in several calls if necessary; raises OSError."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def sync_directory(path: Path) -> None:
    """Flush the entries of a directory to disk (fsync), if the file system supports it."""
    # Some network file systems do not, and some directories can be written but not read; the files themselves are safe.
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _replace(path: Path, content: bytes) -> None:
    # Without the name of the file, which may be as long as the file system allows.
    temporary = path.with_name(f".sysbench-{os.urandom(4).hex()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        try:
            if path.exists():
                os.fchmod(descriptor, stat.S_IMODE(path.stat().st_mode))
            write_all(descriptor, content)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


class ScratchDirectory(tempfile.TemporaryDirectory[str]):
    """A temporary directory that is locked as long as its process, or one that it has forked, lives.

    Making one removes those of killed processes from the same place.
    """

    def __init__(self, *, dir: str | None = None, ignore_cleanup_errors: bool = False) -> None:
        """Make the directory in `dir`; default: where `tempfile` puts temporary files."""
        _remove_abandoned(Path(dir or tempfile.gettempdir()))
        super().__init__(prefix=SCRATCH_PREFIX, dir=dir, ignore_cleanup_errors=ignore_cleanup_errors)
        self._lock = _locked(self.name)

    def cleanup(self) -> None:
        """Remove the directory and its content."""
        super().cleanup()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _remove_abandoned(place: Path) -> None:
    """Remove the user's own directories that no living process has locked. What cannot be removed stays."""
    with suppress(OSError):
        for path in place.glob(f"{SCRATCH_PREFIX}*"):
            status = path.lstat()
            if status.st_uid != os.geteuid() or time.time() - status.st_mtime < _YOUNG_S or path.is_symlink():
                continue
            lock = _locked(path)
            if lock is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(lock)


def _locked(path: str | Path) -> int | None:
    """Lock a directory, and return what must stay open; None if another process has locked it, or if that cannot be."""
    lock = None
    try:
        lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        if lock is not None:
            os.close(lock)
        return None
    return lock
