"""Configs of LitGPT and torchtitan."""

from __future__ import annotations

from pathlib import Path

import pytest

from sysbench.commands.check.understanding import CannotTellError, Word
from tests.commands.check.reading import directions, format_named, understood, words

LITGPT = """
    checkpoint_dir: checkpoints/meta-llama/Llama-3.2-1B
    out_dir: out
    precision: bf16-true
    devices: 1
    lora_r: 32
    train:
      global_batch_size: 8
      micro_batch_size: 2
      max_seq_length: 512
      max_steps: 100
    optimizer:
      class_path: torch.optim.AdamW
      init_args: {lr: 0.0002}
"""

TITAN = """
    [model]
    name = "llama3"
    flavor = "8B"
    [training]
    local_batch_size = 2
    seq_len = 4096
    steps = 500
    [activation_checkpoint]
    mode = "full"
"""


def test_adapters_of_litgpt(tmp_path: Path) -> None:
    found = understood(tmp_path, LITGPT)
    assert words(found) == {
        "model": "hf:meta-llama/Llama-3.2-1B",
        "lora": "32",
        "lora_targets": "q_proj+v_proj",
        "ranks": "1",
        "batch": "2",
        "grad_accum": "4",
        "ctx": "512",
        "precision": "bf16-true",
        "optimizer": "foreach",
        "attention": "sdpa",
    }
    assert (found.steps, found.unknown) == (100, [])
    assert directions(found) == {"checkpoint_dir": "more"}  # an output layer with weights of its own


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("lora_key: true\n    lora_mlp: true\n    lora_projection: true", {"lora_targets": "all-linear"}),
        ("lora_value: false\n    lora_projection: true", {"lora_targets": "q_proj+o_proj"}),
        ("quantize: bnb.nf4-dq", {"quantize": "nf4"}),
        ("quantize: bnb.int8", {"quantize": "int8"}),
        ("num_nodes: 2", {"ranks": "2", "strategy": "fsdp2", "checkpoint": "full", "grad_accum": "2"}),
    ],
)
def test_options_of_litgpt(tmp_path: Path, lines: str, expected: dict[str, str]) -> None:
    assert expected.items() <= words(understood(tmp_path, f"{LITGPT}    {lines}\n")).items()


def test_weights_that_litgpt_quantizes_in_each_step_are_left_out(tmp_path: Path) -> None:
    found = understood(tmp_path, f"{LITGPT}    quantize: bnb.int8-training\n")
    assert "quantize" not in words(found)
    assert directions(found)["quantize"] == "more"


@pytest.mark.parametrize(
    ("named", "precision"), [("bf16-mixed", "bf16"), ("32-true", "fp32"), ("16-mixed", "fp16"), ("null", "bf16")]
)
def test_precisions_of_litgpt(tmp_path: Path, named: str, precision: str) -> None:
    assert words(understood(tmp_path, LITGPT.replace("bf16-true", named)))["precision"] == precision


def test_models_with_fused_layers_have_other_names_of_targets(tmp_path: Path) -> None:
    for model, targets in (("microsoft/Phi-3-mini-4k-instruct", "qkv_proj"), ("tiiuae/falcon-7b", "query_key_value")):
        found = words(understood(tmp_path, LITGPT.replace("meta-llama/Llama-3.2-1B", model)))
        assert found["lora_targets"] == targets


def test_pretraining_by_litgpt_counts_steps_by_tokens(tmp_path: Path) -> None:
    found = understood(
        tmp_path,
        """
        model_name: tiny-llama-1.1b
        out_dir: out
        precision: bf16-mixed
        devices: auto
        train: {global_batch_size: 512, micro_batch_size: 4, max_seq_length: 2048, max_tokens: 1048577}
        eval: {interval: 1000}
        """,
    )
    assert found.steps == 2  # 512 × 2,048 tokens are 1,048,576
    assert {"optimizer": "fused", "grad_accum": "128"}.items() <= words(found).items()
    assert "lora" not in words(found)


OWN = """
    out_dir: out
    precision: bf16-mixed
    model_config: {n_layer: 6, n_head: 6, n_embd: 288, intermediate_size: 768, padded_vocab_size: 32000, MLP}
"""


def test_a_model_with_dimensions_of_its_own_is_the_built_in_one(tmp_path: Path) -> None:
    found = understood(tmp_path, OWN.replace("MLP", "mlp_class_name: LLaMAMLP"))
    own = {name: found.word(name) for name in ("layers", "heads", "d_model", "d_ff", "vocab", "model")}
    assert own == {"layers": "6", "heads": "6", "d_model": "288", "d_ff": "768", "vocab": "32000", "model": None}
    for mlp in ("mlp_class_name: GptNeoxMLP", "mlp_class_name: LLaMAMLP, n_query_groups: 2"):
        with pytest.raises(CannotTellError, match="n_layer: 6 is of a model of its own"):
            understood(tmp_path, OWN.replace("MLP", mlp))
    with pytest.raises(CannotTellError, match="has no n_embd beside it"):
        understood(tmp_path, OWN.replace("n_embd: 288, ", "").replace("MLP", "mlp_class_name: LLaMAMLP"))


def test_quantized_weights_of_litgpt_need_adapters_and_one_gpu(tmp_path: Path) -> None:
    with pytest.raises(CannotTellError, match="needs adapters"):
        understood(tmp_path, LITGPT.replace("lora_r: 32", "quantize: bnb.nf4"))
    with pytest.raises(CannotTellError, match="is for one GPU in LitGPT"):
        understood(tmp_path, LITGPT.replace("devices: 1", "devices: 2\n    quantize: bnb.nf4"))
    for kind, effects in (("bnb.nf4", {"quantize": "more"}), ("bnb.nf4-dq", {})):
        found = understood(tmp_path, f"{LITGPT}    quantize: {kind}\n")
        assert directions(found) == {"checkpoint_dir": "more", **effects}


def test_a_change_of_the_batch_keeps_the_whole_batch_of_litgpt(tmp_path: Path) -> None:
    lines = format_named("LitGPT").lines
    found = understood(tmp_path, LITGPT)
    expected = {"train.micro_batch_size": 1, "train.global_batch_size": 8}
    assert lines({"batch": 1, "grad_accum": 8}, found) == expected
    assert lines({"quantize": "nf4"}, found) == {"quantize": "bnb.nf4"}
    assert lines({"checkpoint": "full"}, found) is None


def test_fsdp_of_torchtitan(tmp_path: Path) -> None:
    found = understood(tmp_path, TITAN, suffix="toml")
    assert words(found) == {
        "model": "hf:llama-3.1-8b",
        "batch": "2",
        "ctx": "4096",
        "attention": "sdpa",
        "optimizer": "fused",
        "checkpoint": "full",
        "strategy": "fsdp2",
        "precision": "bf16",
        "param_dtype": "bf16",
        "reduce_dtype": "fp32",
        "grad_accum": "1",
    }
    assert (found.steps, found.unknown) == (500, [])


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("data_parallel_shard_degree = 4", {"strategy": "fsdp2", "ranks": "4"}),
        ("data_parallel_shard_degree = 4\n    data_parallel_replicate_degree = 2", {"strategy": "hsdp", "ranks": "8"}),
        ("data_parallel_shard_degree = 1\n    data_parallel_replicate_degree = 4", {"strategy": "ddp", "ranks": "4"}),
        ('fsdp_reshard_after_forward = "never"', {"reshard": "off"}),
    ],
)
def test_parallelism_of_torchtitan(tmp_path: Path, lines: str, expected: dict[str, str]) -> None:
    found = words(understood(tmp_path, f"{TITAN}    [parallelism]\n    {lines}\n", suffix="toml"))
    assert expected.items() <= found.items()
    assert ("param_dtype" in found) == (found["strategy"] != "ddp")


@pytest.mark.parametrize(
    ("lines", "checkpoint"),
    [
        ('"none"', "none"),
        ('"selective"\n    selective_ac_option = "op"', "selective"),
        ('"selective"\n    selective_ac_option = "2"', "every-2"),
        ('"selective"\n    selective_ac_option = "1"', "full"),
    ],
)
def test_checkpointing_of_torchtitan(tmp_path: Path, lines: str, checkpoint: str) -> None:
    assert words(understood(tmp_path, TITAN.replace('"full"', lines), suffix="toml"))["checkpoint"] == checkpoint


def test_what_torchtitan_has_beyond_is_noted(tmp_path: Path) -> None:
    more = "    [parallelism]\n    tensor_parallel_degree = 2\n    [compile]\n    enable = true\n"
    found = understood(tmp_path, TITAN.replace('"8B"', '"8B"\n    converters = ["float8"]') + more, suffix="toml")
    assert directions(found) == {
        "parallelism.tensor_parallel_degree": "less",
        "model.converters": "either",
    }
    assert found.options["execution"] == Word("compiled", ("compile.enable",))
    with pytest.raises(CannotTellError, match="no published model"):
        understood(tmp_path, TITAN.replace("8B", "debugmodel"), suffix="toml")


def test_torchtitan_reduces_gradients_in_the_dtype_that_it_says(tmp_path: Path) -> None:
    more = TITAN.replace("[training]", '[training]\n    mixed_precision_reduce = "bfloat16"')
    assert words(understood(tmp_path, TITAN, suffix="toml"))["reduce_dtype"] == "fp32"
    assert words(understood(tmp_path, more, suffix="toml"))["reduce_dtype"] == "bf16"
    with pytest.raises(CannotTellError, match=r"training\.dtype: float8 is no dtype"):
        understood(tmp_path, TITAN.replace("[training]", '[training]\n    dtype = "float8"'), suffix="toml")


@pytest.mark.parametrize(
    ("name", "flavor", "model"),
    [
        ("llama3", "8B_varlen", "llama-3.1-8b"),
        ("deepseek_v3", "16B", "deepseek-v2-lite"),
        ("llama4", "17bx16e", "llama-4-scout-17b-16e-text"),
        ("gpt_oss", "20B", "gpt-oss-20b"),
    ],
)
def test_flavors_of_torchtitan_by_the_names_of_the_catalogue(
    tmp_path: Path, name: str, flavor: str, model: str
) -> None:
    text = f'[model]\nname = "{name}"\nflavor = "{flavor}"\n[training]\nlocal_batch_size = 1\n'
    assert understood(tmp_path, text, suffix="toml").word("model") == f"hf:{model}"


def test_accumulation_of_a_whole_batch_depends_on_the_number_of_gpus(tmp_path: Path) -> None:
    found = understood(tmp_path, LITGPT)
    assert (found.global_batch, found.word("grad_accum")) == (8, "4")


def test_ranks_that_share_a_sequence_are_no_replicas(tmp_path: Path) -> None:
    text = '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 1\nglobal_batch_size = 16\n'
    degrees = "[parallelism]\ndata_parallel_shard_degree = 2\ntensor_parallel_degree = 4\n"
    found = understood(tmp_path, text + degrees, suffix="toml")
    assert (found.word("ranks"), found.word("grad_accum"), found.global_batch) == ("8", "8", None)
    open_ended = understood(tmp_path, text, suffix="toml")
    assert (open_ended.word("ranks"), open_ended.global_batch) == (None, 16)


def test_16_bit_weights_of_torchtitan_are_reduced_in_fp32(tmp_path: Path) -> None:
    text = '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 1\ndtype = "bfloat16"\n'
    said = {"precision": "bf16-true", "param_dtype": "bf16", "reduce_dtype": "fp32"}
    assert said.items() <= words(understood(tmp_path, text, suffix="toml")).items()
