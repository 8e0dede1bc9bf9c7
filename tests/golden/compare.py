"""Screens as they are meant to look, kept as text files, so that a change of looks is seen in review.

`SYSBENCH_UPDATE_GOLDEN=1 pytest …` writes what is shown now in place of what was expected.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent


def assert_golden(name: str, shown: str) -> None:
    """Compare with `tests/golden/<name>.txt`, spaces at the end of lines left out."""
    actual = "\n".join(line.rstrip() for line in shown.splitlines()).rstrip("\n") + "\n"
    path = FOLDER / f"{name}.txt"
    if os.environ.get("SYSBENCH_UPDATE_GOLDEN"):
        path.write_text(actual, encoding="utf-8")
    assert path.exists(), f"{path} is not there; SYSBENCH_UPDATE_GOLDEN=1 writes it"
    assert actual == path.read_text(encoding="utf-8")


@pytest.fixture(scope="module", autouse=True)
def plain_environment() -> Iterator[None]:
    """Screens that do not depend on what the terminal that runs the tests has asked for."""
    with pytest.MonkeyPatch.context() as environment:
        for name in ("FORCE_COLOR", "NO_COLOR", "COLUMNS", "LINES", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
            environment.delenv(name, raising=False)
        environment.setenv("TERM", "xterm-256color")
        yield
