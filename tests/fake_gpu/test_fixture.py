"""The decision of a test that needs a compiler where there is none."""

import sys

import pytest

from tests.fake_gpu.build import NotAvailableError
from tests.fake_gpu.fixture import not_available

NO_COMPILER = NotAvailableError("no g++ to build the fake GPU")


def test_a_missing_compiler_skips_a_test_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no g\\+\\+"):
        not_available(NO_COMPILER)


@pytest.mark.skipif(sys.platform != "linux", reason="the fake GPU needs Linux, so elsewhere CI skips it, too")
def test_a_missing_compiler_fails_a_test_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="CI must run this: no g\\+\\+"):
        not_available(NO_COMPILER)
