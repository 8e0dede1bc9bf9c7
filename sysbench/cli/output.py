"""Standard output, as the place where results go."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from sysbench.engine.storage import cannot_write


class _Output(Console):
    """A console that leaves a closed pipe to `results`; Rich would end the process."""

    def on_broken_pipe(self) -> None:
        """Let the error through."""
        raise BrokenPipeError


@contextmanager
def results() -> Iterator[Console]:
    """A console on stdout. A reader that goes away (`| head`) ends the output, not the command.

    Raises OutputError when stdout cannot take the result: a full disk, say.
    """
    try:
        yield _Output()
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_stdout()
    except OSError as error:
        _discard_stdout()
        raise cannot_write(Path("standard output"), error) from error


def _discard_stdout() -> None:
    """Send what is still buffered nowhere: Python flushes stdout once more at exit, which must not fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
