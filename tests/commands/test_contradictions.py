"""No finding contradicts the numbers that it cites, or another finding of the same run."""

from __future__ import annotations

from tests.commands.contradictions import contradictions


def test_findings_of_noise_contradict_neither_their_numbers_nor_one_another() -> None:
    assert list(contradictions(runs=80, seed=20261122)) == []
