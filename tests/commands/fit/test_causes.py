"""What the peak is for: decided by category, operator and module of each allocation, whatever its size is."""

from __future__ import annotations

from collections import Counter

import pytest

from sysbench.commands.fit.causes import explained
from sysbench.commands.fit.record import PeakExplained
from sysbench.commands.fit.spec import FitSpec

# Scores of attention and the hidden layer have the same size (heads × ctx = d_ff), as do logits and activations.
ALIKE = {"d_model": 128, "d_ff": 256, "layers": 2, "heads": 4, "vocab": 128, "ctx": 64, "batch": 2}


def causes(**axes: object) -> Counter[str]:
    (cell,) = FitSpec(**ALIKE, gpus="h100", **axes).cells()
    (found,) = [each for each in explained(cell) if isinstance(each, PeakExplained)]
    sizes = Counter[str]()
    for cause in found.causes:
        sizes[cause.kind] += cause.size_bytes
    assert sum(sizes.values()) == found.allocated_peak_bytes
    return sizes


@pytest.mark.parametrize(("attention", "has_scores"), [("naive", True), ("math", True), ("flash", False)])
def test_only_materialised_attention_has_scores(attention: str, has_scores: bool) -> None:
    assert ("attention scores" in causes(attention=attention, precision="bf16")) == has_scores


def test_logits_are_those_of_the_output_layer_and_the_loss() -> None:
    logits_bytes = 4 * ALIKE["batch"] * ALIKE["ctx"] * ALIKE["vocab"]
    found = causes(attention="efficient", precision="fp32")["logits"]
    assert 2 * logits_bytes <= found < 2.1 * logits_bytes  # they and their softmax, and the loss of each token
