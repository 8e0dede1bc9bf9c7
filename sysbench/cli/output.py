"""Standard output, as the place where results go."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console


class _Output(Console):
    """A console that leaves a closed pipe to `results`; Rich would end the process."""

    def on_broken_pipe(self) -> None:
        """Let the error through."""
        raise BrokenPipeError


@contextmanager
def results() -> Iterator[Console]:
    """A console on stdout. A reader that goes away (`| head`) ends the output, not the command."""
    try:
        yield _Output()
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes stdout once more at exit, which must not fail a second time.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
