"""Configs of axolotl: what its own defaults decide."""

from __future__ import annotations

from pathlib import Path

import pytest

from sysbench.commands.check.readers import shared
from tests.commands.check.reading import directions, understood, words

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


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("HuggingFaceTB/SmolLM3-3B-checkpoints", "smollm3-3b"),
        ("alignment-handbook/zephyr-7b-sft-full", "mistral-7b"),
        ("teknium/OpenHermes-2.5-Mistral-7B", "mistral-7b"),
        ("NousResearch/Hermes-3-Llama-3.1-8B", "llama-3.1-8b"),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "qwen2.5-7b"),
        ("llava-hf/llava-v1.6-mistral-7b", None),  # has a part for images besides
        ("google/flan-t5-base", None),  # other dimensions than t5-base
        ("someone/Falcon-E-3B", None),
    ],
)
def test_a_name_that_ends_with_a_known_models_is_taken_for_it(name: str, slug: str | None) -> None:
    assert shared.same_dimensions(name) == slug


def test_cut_cross_entropy_is_noted_also_where_only_its_plugin_is_named(tmp_path: Path) -> None:
    plugin = "plugins: [axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin]"
    config = "base_model: gpt2\nmicro_batch_size: 1\nsequence_len: 128\n"
    assert directions(understood(tmp_path, f"{config}{plugin}\n")) == {"plugins": "less"}
    assert directions(understood(tmp_path, f"{config}{plugin}\ncut_cross_entropy: false\n")) == {}


@pytest.mark.parametrize(
    ("line", "direction"),
    [
        ("exact_deduplication: true", None),
        ("unsloth_lora_qkv: true", "less"),
        ("sequence_parallel_degree: 2", "less"),
        ("peft_layers_to_transform: [0, 1]", "less"),
        ("kd_trainer: true", "more"),
        ("overrides_of_model_config: {rope_scaling: 2}", "either"),
    ],
)
def test_what_axolotl_documents_is_known(tmp_path: Path, line: str, direction: str | None) -> None:
    found = understood(tmp_path, f"base_model: gpt2\nmicro_batch_size: 1\nsequence_len: 128\n{line}\n")
    assert not found.unknown
    assert [each.direction for each in found.unmodelled] == ([direction] if direction else [])
