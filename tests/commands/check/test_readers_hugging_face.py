"""Configs of TRL, transformers and LLaMA-Factory: each word as the trainer documents it."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from sysbench.commands.check.understanding import CannotTellError
from tests.commands.check.reading import directions, format_named, understood, words

TRL = """
    model_name_or_path: meta-llama/Llama-3.2-1B
    dataset_name: some/data
    max_length: 512
    per_device_train_batch_size: 2
    gradient_accumulation_steps: 4
    gradient_checkpointing: false
"""

TRL_OVER_8_BITS = f"{TRL.replace('    gradient_checkpointing: false', '')}    use_peft: true\n    load_in_8bit: true\n"

FACTORY = """
    model_name_or_path: Qwen/Qwen3-0.6B
    stage: sft
    do_train: true
    dataset: some_data
    cutoff_len: 1024
    per_device_train_batch_size: 2
"""


def test_what_a_config_of_trl_says_is_taken(tmp_path: Path) -> None:
    found = understood(tmp_path, TRL, suffix="yml")
    assert words(found) == {
        "model": "hf:meta-llama/Llama-3.2-1B",
        "batch": "2",
        "grad_accum": "4",
        "optimizer": "fused",
        "ctx": "512",
        "precision": "bf16",
        "checkpoint": "none",
        "attention": "sdpa",
    }
    assert not found.unknown
    assert found.model == "meta-llama/Llama-3.2-1B"


@pytest.mark.parametrize(
    ("lines", "precision"),
    [
        ("dtype: bfloat16\n    bf16: true", "bf16-true"),
        ("torch_dtype: bfloat16\n    bf16: true", "bf16-true"),
        ("torch_dtype: auto\n    bf16: true", "bf16-true"),
        ("torch_dtype: bfloat16\n    bf16: false", "bf16-true"),  # no autocast is needed over such weights
        ("dtype: float32\n    bf16: true", "bf16"),
        ("bf16: true", "bf16"),  # from_pretrained's fp32, under autocast
        ("fp16: true", "fp16"),
        ("bf16: false\n    tf32: true", "tf32"),
        ("bf16: false", "fp32"),
        ("use_peft: true\n    load_in_4bit: true\n    torch_dtype: bfloat16", "bf16"),
    ],
)
def test_weights_have_the_dtype_that_they_are_loaded_in(tmp_path: Path, lines: str, precision: str) -> None:
    assert words(understood(tmp_path, f"{TRL}    {lines}\n"))["precision"] == precision


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("bf16: true\n    fp16: true", "fp16: True contradicts bf16"),
        ("torch_dtype: float16\n    bf16: true", "torch_dtype: float16 contradicts bf16"),
        ("dtype: int3", "dtype: int3 is no dtype of weights"),
        ("load_in_4bit: true", "needs adapters"),
        ("num_generations: 8", "generates text within a step"),
        ("per_device_train_batch_size: many", "found duplicate key"),
    ],
)
def test_what_cannot_be_answered_for_is_refused_with_its_reason(tmp_path: Path, lines: str, said: str) -> None:
    with pytest.raises(Exception, match=said):
        understood(tmp_path, f"{TRL}    {lines}\n")


def test_without_a_limit_of_the_length_the_data_decides(tmp_path: Path) -> None:
    with pytest.raises(CannotTellError, match="max_length: None sets no limit"):
        understood(tmp_path, TRL.replace("512", "null"))


def test_what_trl_takes_by_default_is_said(tmp_path: Path) -> None:
    found = understood(tmp_path, "model_name_or_path: gpt2\n    dataset_name: d\n".replace("    ", ""))
    assert words(found) == {
        "model": "hf:gpt2",
        "batch": "8",
        "grad_accum": "1",
        "optimizer": "fused",
        "ctx": "1024",
        "precision": "bf16",
        "checkpoint": "full",
        "attention": "sdpa",
    }
    said = " ".join(found.assumed)
    defaults = ("per_device_train_batch_size", "max_length", "bf16", "gradient_checkpointing", "optim", "attn_impl")
    assert all(key in said for key in defaults)
    assert not any(word.keys for name, word in found.options.items() if name != "model")


def test_transformers_alone_neither_checkpoints_nor_casts(tmp_path: Path) -> None:
    found = words(understood(tmp_path, "model_name_or_path: gpt2\noutput_dir: out\nlearning_rate: 1e-4\n"))
    assert found["checkpoint"] == "none"
    assert found["precision"] == "fp32"


def test_adapters_of_trl(tmp_path: Path) -> None:
    lines = "use_peft: true\n    lora_target_modules: [q_proj, v_proj]\n    lora_modules_to_save: [lm_head]\n"
    found = understood(tmp_path, f"{TRL}    {lines}")
    assert (words(found)["lora"], words(found)["lora_targets"]) == ("16", "q_proj+v_proj")  # 16 is ModelConfig's
    assert directions(found) == {"lora_modules_to_save": "more"}
    without = understood(tmp_path, f"{TRL}    lora_r: 32\n")
    assert "lora" not in words(without)
    assert not without.unknown


@pytest.mark.parametrize(
    ("name", "kind", "left_out"),
    [
        ("adamw_torch", "foreach", {}),
        ("adamw_torch_fused", "fused", {}),
        ("adamw_torch_8bit", "adamw-8bit", {}),
        ("adamw_bnb_8bit", "adamw-8bit", {"optim": "more"}),  # with 32 bits for embeddings
        ("adamw_8bit", "adamw-8bit", {"optim": "more"}),
        ("paged_adamw_8bit", "adamw-8bit-paged", {}),
        ("adafactor", "adafactor", {}),
        ("paged_adamw_32bit", "foreach", {"optim": "less"}),
        ("lion_32bit", "fused", {"optim": "less"}),
        ("sophia", "fused", {"optim": "either"}),
    ],
)
def test_optimizers_of_transformers(tmp_path: Path, name: str, kind: str, left_out: dict[str, str]) -> None:
    found = understood(tmp_path, f"{TRL}    optim: {name}\n")
    assert words(found)["optimizer"] == kind
    assert directions(found) == left_out


def test_a_preference_pair_is_two_sequences_and_a_change_of_the_batch_is_written_in_pairs(tmp_path: Path) -> None:
    found = understood(tmp_path, f"{TRL}    beta: 0.1\n")
    assert words(found)["batch"] == "4"
    assert directions(found) == {"beta": "more"}  # the reference model
    lines = format_named("TRL / transformers").lines
    assert lines({"batch": 2, "grad_accum": 8}, found) == {
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": 8,
    }
    assert lines({"batch": 1, "grad_accum": 16}, found) is None  # half a pair
    adapted = understood(tmp_path, f"{TRL}    beta: 0.1\n    use_peft: true\n")
    assert directions(adapted) == {"beta": "more"}  # the forward of the model without its adapters, the reference


@pytest.mark.parametrize(("folder", "directions_of"), [("desktop/dpo", "more"), ("corpora", "more"), ("orpo", None)])
def test_the_method_is_a_whole_word_of_the_path(tmp_path: Path, folder: str, directions_of: str | None) -> None:
    (place := tmp_path / folder).mkdir(parents=True)
    found = understood(place, f"{TRL}    beta: 0.1\n")
    assert words(found)["batch"] == "4"
    assert directions(found).get("beta") == directions_of  # the reference model of DPO, which ORPO has not


@pytest.mark.parametrize(
    ("lines", "backend", "execution"),
    [
        ("torch_compile_backend: inductor", None, "compiled"),
        ("torch_compile: true\n    torch_compile_backend: eager", "either", None),
        ("torch_compile: false", None, None),
    ],
)
def test_a_backend_says_that_the_step_is_compiled(
    tmp_path: Path, lines: str, backend: str | None, execution: str | None
) -> None:
    found = understood(tmp_path, f"{TRL}    {lines}\n")
    assert (directions(found).get("torch_compile_backend"), found.word("execution")) == (backend, execution)


@pytest.mark.parametrize(
    ("lines", "effects"),
    [
        ("load_in_4bit: true", {"load_in_4bit": "more"}),
        ("load_in_4bit: true\n    use_bnb_nested_quant: true", {}),
        ("center_rewards_coefficient: 0.1", {"center_rewards_coefficient": "less"}),
    ],
)
def test_what_is_left_out_of_trls_step(tmp_path: Path, lines: str, effects: dict[str, str]) -> None:
    assert directions(understood(tmp_path, f"{TRL}    use_peft: true\n    {lines}\n")) == effects


def test_open_instructs_files_are_not_trls(tmp_path: Path) -> None:
    with pytest.raises(CannotTellError, match="is a key of open-instruct"):
        understood(tmp_path, f"{TRL}    with_tracking: true\n")


V1 = """
    model: Qwen/Qwen3-0.6B
    model_class: llm
    train_dataset: data.yaml
    micro_batch_size: 1
    global_batch_size: 16
    cutoff_len: 2048
    bf16: true
"""


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("", {"precision": "fp32", "checkpoint": "full", "grad_accum": "16"}),
        ("dist_config: {name: fsdp2}", {"precision": "bf16", "param_dtype": "bf16", "reduce_dtype": "fp32"}),
        ("dist_config: {name: fsdp2, reshard_after_forward: false}", {"reshard": "off"}),
        ("dist_config: {name: fsdp2, offload_params: true}", {"offload": "parameters"}),
        ("enable_activation_checkpointing: false", {"checkpoint": "none"}),
        ("optim_config: {name: muon}", {"optimizer": "muon"}),
        ("peft_config: {name: lora, r: 16}\nquant_config: {name: bnb}", {"quantize": "nf4", "precision": "bf16-true"}),
    ],
)
def test_what_the_second_form_of_llama_factory_decides(tmp_path: Path, lines: str, said: dict[str, str]) -> None:
    found = understood(tmp_path, f"{textwrap.dedent(V1)}{lines}\n")
    assert said.items() <= words(found).items()
    assert not found.unknown


@pytest.mark.parametrize(
    ("lines", "key", "direction"),
    [
        ("freeze_language_model: true", "freeze_language_model", "less"),
        ("use_asft_loss: true", "use_asft_loss", "more"),
        ("ulysses_context_parallel_size: 4", "ulysses_context_parallel_size", "less"),
        ("num_mtp_layers: 1", "num_mtp_layers", "more"),
    ],
)
def test_what_is_left_out_of_llama_factorys_step(tmp_path: Path, lines: str, key: str, direction: str) -> None:
    found = understood(tmp_path, f"{FACTORY.rstrip()}\n    {lines}\n")
    assert (directions(found), found.unknown) == ({key: direction}, [])


def test_a_change_is_written_as_lines_of_trl(tmp_path: Path) -> None:
    found = understood(tmp_path, f"{TRL}    torch_dtype: float32\n    bf16: true\n")
    lines = format_named("TRL / transformers").lines
    assert lines({"checkpoint": "full"}, found) == {"gradient_checkpointing": True}
    assert lines({"optimizer": "adamw-8bit"}, found) == {"optim": "adamw_torch_8bit"}
    assert lines({"lora": 16, "quantize": "nf4"}, found) == {"use_peft": True, "lora_r": 16, "load_in_4bit": True}
    assert lines({"precision": "bf16-true"}, found) == {"bf16": True, "fp16": False, "torch_dtype": "bfloat16"}
    assert lines({"checkpoint": "every-2"}, found) is None


def test_fsdp_keeps_trained_weights_in_fp32_and_gathers_them_in_bf16(tmp_path: Path) -> None:
    sharded = f"{TRL}    torch_dtype: bfloat16\n    fsdp: full_shard auto_wrap offload\n"
    found = words(understood(tmp_path, sharded))
    expected = {"strategy": "fsdp2", "precision": "bf16", "param_dtype": "bf16", "offload": "parameters"}
    assert expected.items() <= found.items()
    adapted = words(understood(tmp_path, f"{sharded}    use_peft: true\n"))
    assert adapted["precision"] == "bf16-true"  # frozen weights stay as they were loaded


def test_a_training_by_megatron_or_without_training_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CannotTellError, match="Megatron"):
        understood(tmp_path, f"{FACTORY}    pipeline_model_parallel_size: 4\n")
    with pytest.raises(CannotTellError, match="trains nothing"):
        understood(tmp_path, FACTORY.replace("do_train: true", "do_predict: true"))
    with pytest.raises(CannotTellError, match="generates text"):
        understood(tmp_path, FACTORY.replace("sft", "ppo"))


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("bf16: true", {"lora": "8", "lora_targets": "all-linear", "precision": "bf16-true"}),
        ("bf16: true\n    finetuning_type: full", {"precision": "bf16"}),
        ("pure_bf16: true\n    finetuning_type: full", {"precision": "bf16-true"}),
        ("finetuning_type: full", {"precision": "fp32"}),
        ("bf16: true\n    quantization_bit: 4", {"quantize": "nf4", "precision": "bf16-true"}),
        ("lora_rank: 64\n    lora_target: q_proj,v_proj", {"lora": "64", "lora_targets": "q_proj+v_proj"}),
        ("disable_gradient_checkpointing: true", {"checkpoint": "none"}),
        ("gradient_checkpointing: false", {"checkpoint": "full"}),  # is not the key that decides
        ("flash_attn: fa2", {"attention": "flash"}),
        ("flash_attn: disabled", {"attention": "naive"}),
        ("finetuning_type: full\n    use_muon: true", {"optimizer": "muon"}),
        ("use_dora: true", {"adapter": "dora"}),
        ("fp16: true", {"precision": "fp16-true"}),
        ("fp16: true\n    finetuning_type: full", {"precision": "fp16"}),
    ],
)
def test_methods_of_llama_factory(tmp_path: Path, lines: str, expected: dict[str, str]) -> None:
    found = understood(tmp_path, f"{FACTORY}    {lines}\n")
    assert expected.items() <= words(found).items()
    assert not found.unknown


@pytest.mark.parametrize("bits", [4, 8])
def test_dora_over_quantized_weights_is_computed_as_lora(tmp_path: Path, bits: int) -> None:
    found = understood(tmp_path, f"{FACTORY}    use_dora: true\n    quantization_bit: {bits}\n")
    assert "adapter" not in words(found)
    assert directions(found) == {"use_dora": "more"}


@pytest.mark.parametrize(
    ("lines", "checkpoint"),
    [
        (f"{FACTORY}    quantization_bit: 8\n", "reentrant"),  # LLaMA-Factory's default
        (f"{FACTORY}    quantization_bit: 8\n    use_reentrant_gc: false\n", "full"),
        (f"{FACTORY}    quantization_bit: 8\n    disable_gradient_checkpointing: true\n", "none"),
        (f"{FACTORY}    quantization_bit: 4\n", "full"),  # keeps no inputs
        (f"{TRL_OVER_8_BITS}    gradient_checkpointing: true\n", "full"),
        (f"{TRL_OVER_8_BITS}    gradient_checkpointing_kwargs: {{use_reentrant: true}}\n", "reentrant"),
    ],
)
def test_over_8_bits_it_matters_whether_checkpointing_is_reentrant(tmp_path: Path, lines: str, checkpoint: str) -> None:
    found = understood(tmp_path, lines)
    assert words(found)["checkpoint"] == checkpoint
    assert any("only reentrant" in each for each in found.assumed) == (
        words(found)["quantize"] == "int8" and checkpoint == "full"
    )
    assert not found.unknown


def test_weights_of_8_bits_leave_the_others_in_fp32_by_trl(tmp_path: Path) -> None:
    found = understood(tmp_path, TRL_OVER_8_BITS)
    assert {"quantize": "int8", "precision": "bf16"}.items() <= words(found).items()
    lines = format_named("TRL / transformers").lines({"quantize": "nf4"}, found)
    assert lines == {"load_in_4bit": True, "load_in_8bit": False}


def test_full_tuning_by_llama_factory_has_no_adapters(tmp_path: Path) -> None:
    found = words(understood(tmp_path, f"{FACTORY}    finetuning_type: full\n    lora_rank: 8\n"))
    assert "lora" not in found


def test_stages_of_llama_factory(tmp_path: Path) -> None:
    full = f"{FACTORY}    finetuning_type: full\n"
    pairs = understood(tmp_path, full.replace("sft", "dpo"))
    assert (words(pairs)["batch"], directions(pairs)) == ("4", {"stage": "more"})
    assert directions(understood(tmp_path, full.replace("sft", "dpo") + "    pref_loss: orpo\n")) == {}
    assert words(understood(tmp_path, full.replace("sft", "kto")))["batch"] == "2"
    assert words(understood(tmp_path, full.replace("sft", "pt")))["batch"] == "2"


def test_what_llama_factory_takes_by_default_is_said(tmp_path: Path) -> None:
    found = understood(tmp_path, "model_name_or_path: Qwen/Qwen3-0.6B\ndo_train: true\nstage: sft\n")
    expected = {"batch": "8", "grad_accum": "1", "ctx": "2048", "checkpoint": "full", "lora": "8"}
    assert expected.items() <= words(found).items()
    said = " ".join(found.assumed)
    assert all(key in said for key in ("cutoff_len", "per_device_train_batch_size", "checkpointing", "flash_attn"))


def test_the_second_form_of_llama_factory(tmp_path: Path) -> None:
    found = understood(
        tmp_path,
        """
        model: Qwen/Qwen3-0.6B
        model_class: llm
        peft_config: {name: lora, r: 4, target_modules: all}
        quant_config: {name: bnb, quantization_bit: 4}
        dist_config: {name: fsdp2, dcp_path: null}
        micro_batch_size: 2
        global_batch_size: 8
        cutoff_len: 256
        max_steps: 10
        """,
    )
    expected = {"lora": "4", "quantize": "nf4", "strategy": "fsdp2", "batch": "2", "grad_accum": "4", "ctx": "256"}
    assert expected.items() <= words(found).items()
    assert (found.steps, found.unknown) == (10, [])


def test_keys_with_an_effect_that_is_not_modelled_have_a_direction(tmp_path: Path) -> None:
    lines = ("enable_liger_kernel: true", "packing: true", "use_unsloth: true", "image_max_pixels: 262144")
    found = understood(tmp_path, "\n".join((FACTORY.rstrip(), *(f"    {line}" for line in lines), "    fp8: false\n")))
    assert directions(found) == {
        "enable_liger_kernel": "less",
        "packing": "less",
        "use_unsloth": "less",
        "image_max_pixels": "more",
    }
    assert found.word("cross_entropy") == "chunked-256"


def test_a_mistyped_key_is_named_with_the_nearest(tmp_path: Path) -> None:
    (unknown,) = understood(tmp_path, f"{FACTORY}    disable_gradient_checkpoint: true\n").unknown
    assert (unknown.key, unknown.nearest, unknown.line) == (
        "disable_gradient_checkpoint",
        "disable_gradient_checkpointing",
        8,
    )


@pytest.mark.parametrize("model", ["Qwen/Qwen2.5-VL-7B-Instruct", "meta-llama/Llama-4-Scout-17B-16E-Instruct"])
def test_images_of_a_model_that_takes_them_are_left_out_and_said_so(tmp_path: Path, model: str) -> None:
    found = understood(tmp_path, TRL.replace("meta-llama/Llama-3.2-1B", model))
    assert directions(found)["model_name_or_path"] == "more"
    assert "model_name_or_path" not in directions(understood(tmp_path, TRL))


def test_a_key_without_a_value_is_not_unknown(tmp_path: Path) -> None:
    assert not understood(tmp_path, f"{TRL}    some_key:\n").unknown
    assert [each.key for each in understood(tmp_path, f"{TRL}    some_key: 1\n").unknown] == ["some_key"]
