"""Configs of axolotl: what its own defaults decide."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from sysbench.commands.check import file as files
from sysbench.commands.check import question
from sysbench.commands.check.readers import format_of, shared
from sysbench.commands.check.understanding import CannotTellError
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
        ("someone/gpt-oss-20b-trfs-latest", "gpt-oss-20b"),
        ("D:\\Models\\Qwen3-4B", "qwen3-4b"),
        ("philschmid/llama-3-1-8b-math", "llama-3.1-8b"),
        ("models/llama3-8b-instruct-pro", None),  # with further layers
        ("google/flan-t5-base", None),  # other dimensions than t5-base
        ("someone/Falcon-E-3B", None),
    ],
)
def test_a_name_that_ends_with_a_known_models_is_taken_for_it(name: str, slug: str | None) -> None:
    assert shared.same_dimensions(name) == slug


@pytest.mark.parametrize(
    ("lines", "key"),
    [
        ("plugins: [axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin]", "plugins"),
        ("plugins: [axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin]\ncut_cross_entropy: false", None),
        ("cut_cross_entropy: true", "cut_cross_entropy"),
        ("liger_fused_linear_cross_entropy: true", "liger_fused_linear_cross_entropy"),
        ("cut_cross_entropy: true\nrl: orpo", None),
    ],
)
def test_a_loss_without_logits_is_computed_in_chunks(tmp_path: Path, lines: str, key: str | None) -> None:
    found = understood(tmp_path, f"base_model: gpt2\nmicro_batch_size: 1\nsequence_len: 512\n{lines}\n")
    assert found.word("cross_entropy") == (None if key is None else "chunked-256")
    assert directions(found) == ({} if key is None else {key: "less"})


def test_a_micro_batch_shorter_than_a_chunk_is_one_chunk(tmp_path: Path) -> None:
    (tmp_path / "train.yml").write_text(
        "base_model: gpt2\nmicro_batch_size: 1\nsequence_len: 128\ncut_cross_entropy: true\n"
    )
    file = files.read(tmp_path / "train.yml")
    assert question.understood(file, format_of(file), ()).understanding.word("cross_entropy") == "chunked"


PLAIN = """
    base_model: meta-llama/Llama-3.2-1B
    micro_batch_size: 2
    sequence_len: 512
    attn_implementation: flash_attention_2
"""


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("", {"precision": "bf16-true"}),  # auto
        ("bf16: auto\nfp16: true", {"precision": "fp16"}),
        ("bf16: auto\nfloat16: true", {"precision": "bf16-true"}),
        ("bf16: false\nfloat16: true", {"precision": "fp16-true"}),
        ("bf16: false", {"precision": "fp32"}),
        ("adapter: lora\npeft: {backend: bnb, weight_dtype: int8}", {"quantize": "int8"}),
        ("adapter: lora\npeft_use_dora: true", {"adapter": "dora"}),
        ("fsdp_version: 2\nfsdp_config: {offload_params: false}", {"strategy": "fsdp2", "precision": "bf16-true"}),
        ("fsdp_version: 2\nfp32_master_weights: true\nfsdp_config: {offload_params: false}", {"precision": "bf16"}),
        ("fsdp_config: {fsdp_offload_params: false}", {"strategy": "fsdp2", "precision": "bf16"}),
        ("dp_shard_size: 4\ndp_replicate_size: 2\nfsdp_config: {x: 1}", {"strategy": "hsdp", "ranks": "8"}),
        ("expert_parallel_size: 4", {"ranks": "4"}),
        ("deepspeed: {zero_optimization: {stage: 2}}", {"strategy": "zero2"}),
        ("optimizer: ao_adamw_4bit", {"optimizer": "adamw-4bit"}),
        ("torch_compile: auto", {"execution": "compiled"}),
        (
            "adapter: lora\nlora_target_modules: [self_attn.q_proj, model.layers.0.mlp.up_proj]",
            {"lora_targets": "self_attn.q_proj+up_proj"},
        ),
    ],
)
def test_what_axolotl_does_with_a_file(tmp_path: Path, lines: str, said: dict[str, str]) -> None:
    found = understood(tmp_path, f"{dedent(PLAIN)}{lines}\n")
    assert said.items() <= words(found).items()


@pytest.mark.parametrize(
    ("named", "kind"),
    [("xformers", "efficient"), ("flex_attention", "flex"), ("kernels-community/flash-attn3", "flash")],
)
def test_kernels_of_attention_by_their_names(tmp_path: Path, named: str, kind: str) -> None:
    found = understood(tmp_path, PLAIN.replace("flash_attention_2", named))
    assert found.word("attention") == kind
    assert "attn_implementation" not in directions(found)


@pytest.mark.parametrize(
    ("lines", "key", "direction"),
    [
        ("adapter: lora\nload_in_4bit: true", "load_in_4bit", "more"),
        ("adapter: qlora\nbnb_config_kwargs: {bnb_4bit_use_double_quant: false}", None, "more"),
        ("adapter: lora", "adapter", "less"),
        ("deepspeed: nowhere/zero3_bf16_cpuoffload_all.json", "deepspeed", "less"),
        ("context_parallel: {size: 4, kind: ring}", "context_parallel.size", "less"),
        ("gkd_trainer: true\ngkd_lmbda: 0", "gkd_trainer", "more"),
        ("optimizer: lion_8bit", "optimizer", "less"),
    ],
)
def test_what_is_left_out_of_axolotls_step(tmp_path: Path, lines: str, key: str | None, direction: str) -> None:
    found = understood(tmp_path, f"{dedent(PLAIN)}{lines}\n")
    assert directions(found)[key or "bnb_config_kwargs.bnb_4bit_use_double_quant"] == direction
    assert not found.unknown


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("gkd_trainer: true", "on-policy distillation generates text within a step"),
        ("rl: sppo", "is no method that is modelled"),
    ],
)
def test_methods_that_have_no_answer_are_refused(tmp_path: Path, lines: str, said: str) -> None:
    with pytest.raises(CannotTellError, match=said):
        understood(tmp_path, f"{dedent(PLAIN)}{lines}\n")


def test_norms_and_embeddings_are_wide_without_flash_attention(tmp_path: Path) -> None:
    assert directions(understood(tmp_path, PLAIN)) == {}
    assert directions(understood(tmp_path, PLAIN.replace("flash_attention_2", "sdpa"))) == {"base_model": "more"}


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
