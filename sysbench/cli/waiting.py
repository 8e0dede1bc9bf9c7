"""What is being waited for, where nothing else moves on the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


@contextmanager
def waiting(what: str, console: Console | None = None, *, silent: bool = False) -> Iterator[Callable[[str], None]]:
    """Say on a terminal what is being waited for, and take it back afterwards; yields how to say something else.

    Nothing is said where stderr is no terminal, or `console`, where what is waited for goes, is none.
    """
    if silent or not sys.stderr.isatty() or (console is not None and not console.is_terminal):
        yield lambda other: None
        return
    from rich.console import Console as Terminal
    from rich.markup import escape

    with Terminal(stderr=True).status(f" {escape(what)}") as status:
        yield lambda other: status.update(f" {escape(other)}")
