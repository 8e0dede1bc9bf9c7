"""Fixture for pytest: assertions on simulated memory. Importing it imports nothing else of sysbench, and not torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from sysbench.api import Run
    from sysbench.guards import Model


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--sysbench-record`."""
    group = parser.getgroup("sysbench")
    group.addoption(
        "--sysbench-record", action="store_true", help="Record peaks of memory instead of comparing with recorded ones."
    )


class MemoryGuard:
    """The assertions of `sysbench.guards`, with recorded peaks beside the test's file."""

    def __init__(self, file: Path, record: bool) -> None:
        self._file = file
        self._record = record

    def assert_fits(self, model: Model = None, *, on: str = "h100", **step: object) -> Run:
        """Assert that a training step fits on a GPU; see `sysbench.assert_fits`."""
        __tracebackhide__ = True
        from sysbench.guards import assert_fits

        return assert_fits(model, on=on, **step)

    def assert_peak(
        self,
        model: Model = None,
        at_most: int | str | None = None,
        *,
        on: str = "h100",
        within: float | str = 0.0,
        **step: object,
    ) -> Run:
        """Assert that the peak does not exceed a limit, by default the recorded peak; see `sysbench.assert_peak`."""
        __tracebackhide__ = True
        from sysbench.guards import assert_peak

        if at_most is not None:
            return assert_peak(model, at_most, on=on, record=False, within=within, **step)
        return assert_peak(model, self._file, on=on, record=self._record, within=within, **step)


@pytest.fixture
def memory_guard(request: pytest.FixtureRequest) -> MemoryGuard:
    """Assertions on simulated memory: `assert_fits` and `assert_peak`.

    Recorded peaks of `test_x.py` are in `test_x-peaks.json`; `pytest --sysbench-record` writes them.
    """
    file = request.path.with_name(f"{request.path.stem}-peaks.json")
    return MemoryGuard(file, bool(request.config.getoption("--sysbench-record")))
