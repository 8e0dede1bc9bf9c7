"""What the small cells of the tests have in common."""

from collections.abc import Mapping
from typing import Any

SMALL_STEP: Mapping[str, Any] = {
    "size": "custom",
    "precision": "fp32",
    "mode": "train",
    "device": "cpu",
    "attention": "naive",
    "execution": "eager",
    "optimizer": "foreach",
    "seed": 0,
}
"""A training step of the built-in model on the CPU, without its dimensions and its input."""
