"""Settings for the tests that need a GPU."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let others' warnings be warnings: what compilers and drivers say to a GPU cannot be known where there is none.

    One is known: on a GPU with TF32, torch's compiler advises it to whoever computes in fp32, as these tests do. Those
    of sysbench itself stay errors.
    """
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.filterwarnings("default", "error:::sysbench"))
