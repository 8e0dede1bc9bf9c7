"""Configs of axolotl: what its own defaults decide."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands.check.reading import understood, words

OVER_8_BITS = """
    base_model: meta-llama/Llama-3.2-1B
    adapter: lora
    lora_target_linear: true
    load_in_8bit: true
    micro_batch_size: 2
    sequence_len: 512
    bf16: true
    gradient_checkpointing: true
"""


@pytest.mark.parametrize(
    ("lines", "checkpoint"),
    [
        ("", "reentrant"),  # axolotl's default where no other argument is given
        ("gradient_checkpointing_kwargs: {use_reentrant: true}", "reentrant"),
        ("gradient_checkpointing_kwargs: {use_reentrant: false}", "full"),
        ("gradient_checkpointing_kwargs: {preserve_rng_state: false}", "full"),  # transformers' default
        ("rl: orpo", "full"),
    ],
)
def test_checkpointing_over_8_bits_is_reentrant_by_default(tmp_path: Path, lines: str, checkpoint: str) -> None:
    found = understood(tmp_path, f"{OVER_8_BITS}    {lines}\n")
    assert {"quantize": "int8", "checkpoint": checkpoint}.items() <= words(found).items()
    assert not found.unknown
    assert not found.unmodelled


def test_over_whole_weights_checkpointing_is_the_same_either_way(tmp_path: Path) -> None:
    found = words(understood(tmp_path, OVER_8_BITS.replace("load_in_8bit: true", "load_in_8bit: false")))
    assert found["checkpoint"] == "full"
    assert "quantize" not in found
