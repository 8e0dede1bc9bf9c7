"""Patterns of anyone's over names of anyone's take no longer than they may."""

import re
import signal
import time

import pytest

from sysbench.commands.profile import profiles
from sysbench.errors import UsageError


def test_a_pattern_that_never_ends_is_refused_and_another_clock_still_rings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiles, "TIME_LIMIT_S", 0.05)
    rung: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _: rung.append(number))
    others = signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(UsageError, match=r"--kernel \(a\+\)\+\$ takes longer than"):
            profiles.matching_names(re.compile("(a+)+$").search, ["a" * 64 + "b"], "--kernel (a+)+$")
        time.sleep(0.3)
    finally:
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *others)
    assert rung == [signal.SIGALRM]
