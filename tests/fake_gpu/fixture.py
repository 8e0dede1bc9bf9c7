"""The fixture of the fake GPU, for every test: built once, by whichever process needs it first."""

from __future__ import annotations

import os
import sys

import pytest

from tests.fake_gpu.build import NotAvailableError
from tests.fake_gpu.fake import FakeGpu


def not_available(reason: NotAvailableError) -> None:
    """Skip the test, and say why; where CI is to run everything, fail: a test that nobody runs holds nothing."""
    if os.environ.get("CI") and sys.platform == "linux":
        pytest.fail(f"CI must run this: {reason}")
    pytest.skip(str(reason))


@pytest.fixture(scope="session")
def fake_gpu(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> FakeGpu:
    """The fake GPU, kept between runs in pytest's cache where there is one."""
    spread = "PYTEST_XDIST_WORKER" in os.environ
    base = tmp_path_factory.getbasetemp().parent if spread else tmp_path_factory.getbasetemp()
    cache: pytest.Cache | None = getattr(request.config, "cache", None)
    home = base / "fake_gpu_home"
    home.mkdir(exist_ok=True)
    try:
        return FakeGpu.built(cache.mkdir("fake_gpu") if cache is not None else base / "fake_gpu", home)
    except NotAvailableError as reason:
        not_available(reason)
        raise  # which it never comes to
