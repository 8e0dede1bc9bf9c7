"""Sequences that grow with depth: loops are found by comparing two depths, and continued to any other."""

from __future__ import annotations

import pytest

from sysbench.simulate.compiler.growth import grown, loops


def forward(layers: int) -> list[str]:
    """Each layer is a block; the first and the last one have more."""
    return ["embed", *(word for layer in range(layers) for word in ("norm", "product", "norm", "free")), "head"]


def step(layers: int) -> list[str]:
    """Three loops of different lengths, of which the last one ends the sequence."""
    update = ["square", "root"] * 2 * layers
    return [*forward(layers), "loss", *["gradient", "free"] * layers, "clip", *update, *["drop"] * 3 * layers]


@pytest.mark.parametrize("sequence", [forward, step])
@pytest.mark.parametrize("layers", [5, 12])
def test_a_deep_sequence_is_continued_from_two_shallow_ones(sequence: object, layers: int) -> None:
    assert callable(sequence)
    small, large, deep = sequence(3), sequence(4), sequence(layers)
    found = loops(small, large)
    assert found is not None
    assert [large[element.next] for element in grown(found, len(small), layers - 3)] == deep


def test_numbers_of_layers_and_names_grow_with_the_depth_and_with_the_repetition() -> None:
    def named(layers: int) -> list[str]:
        backward = [f"layers.{layer}.gradient" for layer in reversed(range(layers))]
        return [*(f"layers.{layer}.w{part}" for layer in range(layers) for part in (1, 2)), "head", *backward]

    small, large, deep = named(3), named(4), named(9)
    found = loops(*([name.rpartition(".")[2] for name in names] for names in (small, large)))
    assert found is not None
    elements = grown(found, len(small), 6)
    assert [each.name(small[each.small], large[each.large], large[each.next], 6) for each in elements] == deep


@pytest.mark.parametrize(("small", "large"), [("abc", "abd"), ("abc", "ab"), ("abab", "abcabab"), ("", "a")])
def test_what_is_no_repetition_is_not_continued(small: str, large: str) -> None:
    assert loops(small, large) is None
