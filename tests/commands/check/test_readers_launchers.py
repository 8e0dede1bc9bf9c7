"""Configs of accelerate and DeepSpeed, which say how a training is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from sysbench.commands.check.readers import formats
from sysbench.commands.check.understanding import CannotTellError
from tests.commands.check.reading import directions, understood, words

TRAINING = """
    model_name_or_path: meta-llama/Llama-3.2-1B
    dataset_name: some/data
    torch_dtype: bfloat16
    bf16: true
    per_device_train_batch_size: 2
    gradient_accumulation_steps: 4
"""

LAUNCHED = """
    compute_environment: LOCAL_MACHINE
    distributed_type: {kind}
    mixed_precision: bf16
    num_machines: 1
    num_processes: 4
"""


def test_only_these_start_a_training() -> None:
    assert {form.name for form in formats() if form.launches} == {"accelerate", "DeepSpeed"}


def test_ddp(tmp_path: Path) -> None:
    found = words(understood(tmp_path, TRAINING, LAUNCHED.format(kind="MULTI_GPU")))
    assert {"ranks": "4", "strategy": "ddp", "precision": "bf16-true"}.items() <= found.items()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("fsdp_sharding_strategy: FULL_SHARD", {"strategy": "fsdp2"}),
        ("fsdp_sharding_strategy: 1", {"strategy": "fsdp2"}),
        ("fsdp_sharding_strategy: SHARD_GRAD_OP", {"strategy": "fsdp2", "reshard": "off"}),
        ("fsdp_sharding_strategy: HYBRID_SHARD", {"strategy": "hsdp"}),
        ("fsdp_version: 2\n      fsdp_reshard_after_forward: true", {"strategy": "fsdp2", "reshard": "on"}),
        ("fsdp_version: 2\n      fsdp_reshard_after_forward: false", {"strategy": "fsdp2", "reshard": "off"}),
        ("fsdp_offload_params: true", {"offload": "parameters"}),
        ("fsdp_activation_checkpointing: true", {"checkpoint": "full"}),
    ],
)
def test_fsdp_of_both_versions(tmp_path: Path, options: str, expected: dict[str, str]) -> None:
    launched = f"{LAUNCHED.format(kind='FSDP')}    fsdp_config:\n      {options}\n"
    found = words(understood(tmp_path, TRAINING, launched))
    assert {**expected, "precision": "bf16", "param_dtype": "bf16"}.items() <= found.items()


def test_deepspeed_within_accelerate(tmp_path: Path) -> None:
    inside = "    deepspeed_config:\n      zero_stage: 3\n      offload_param_device: cpu\n"
    found = understood(tmp_path, TRAINING, f"{LAUNCHED.format(kind='DEEPSPEED')}{inside}")
    expected = {"strategy": "fsdp2", "param_dtype": "bf16", "precision": "bf16", "offload": "parameters", "ranks": "4"}
    assert expected.items() <= words(found).items()
    second = f"{LAUNCHED.format(kind='DEEPSPEED')}    deepspeed_config:\n      zero_stage: 2\n"
    shared = understood(tmp_path, TRAINING, second)
    assert {"strategy": "zero2", "precision": "bf16-true"}.items() <= words(shared).items()
    assert not shared.unmodelled
    assert any("overlap_comm" in each for each in shared.assumed)


def test_a_launcher_that_says_another_precision_than_the_training_is_refused(tmp_path: Path) -> None:
    launched = LAUNCHED.format(kind="MULTI_GPU").replace("bf16", "fp16")
    with pytest.raises(CannotTellError, match=r"mixed_precision: fp16 contradicts bf16 of the training config"):
        understood(tmp_path, TRAINING, launched)


def test_a_launcher_decides_where_the_training_says_nothing(tmp_path: Path) -> None:
    training = "model_name_or_path: gpt2\noutput_dir: out\nlearning_rate: 1e-4\n"
    assert words(understood(tmp_path, training, LAUNCHED.format(kind="MULTI_GPU")))["precision"] == "bf16"


@pytest.mark.parametrize(("kind", "said"), [("MEGATRON_LM", "MEGATRON_LM is not modelled"), ("TPU", "TPU is not")])
def test_other_ways_to_start_are_refused(tmp_path: Path, kind: str, said: str) -> None:
    with pytest.raises(CannotTellError, match=said):
        understood(tmp_path, TRAINING, LAUNCHED.format(kind=kind))


def test_stages_of_zero(tmp_path: Path) -> None:
    first = understood(tmp_path, TRAINING, '{"zero_optimization": {"stage": 1}, "bf16": {"enabled": "auto"}}')
    assert (words(first)["strategy"], directions(first)) == ("zero1", {})
    assert words(first)["precision"] == "bf16-true"  # with an fp32 copy of the trained weights
    none = understood(tmp_path, TRAINING, '{"zero_optimization": {"stage": 0}, "bf16": {"enabled": "auto"}}')
    assert {"strategy": "ddp", "precision": "bf16"}.items() <= words(none).items()
    offloaded = '{"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}, "train_batch_size": 8}'
    assert words(understood(tmp_path, TRAINING, offloaded))["offload"] == "optimizer"
    third = '{"zero_optimization": {"stage": 3, "offload_param": {"device": "none"}, "reduce_bucket_size": "auto"}}'
    found = understood(tmp_path, TRAINING, third)
    assert words(found)["strategy"] == "fsdp2"
    assert "offload" not in words(found)
    assert not found.unmodelled
    assert not found.unknown


@pytest.mark.parametrize(
    ("size", "bucket_mb"),
    [("5e8", "954"), ("200000000", "381"), ('"auto"', str(round(2048**2 * 2 / 2**20))), ("1000", "1")],
)
def test_buckets_of_zero_2_have_their_own_size(tmp_path: Path, size: str, bucket_mb: str) -> None:
    given = f'"reduce_bucket_size": {size}, "allgather_bucket_size": 2e8, "overlap_comm": true'
    found = understood(tmp_path, TRAINING, f'{{"zero_optimization": {{"stage": 2, {given}}}}}')
    assert words(found)["bucket_mb"] == bucket_mb
    assert not found.unmodelled
    assert not found.unknown


def test_other_ways_of_zero_2_to_reduce_are_left_out(tmp_path: Path) -> None:
    given = '"stage": 2, "overlap_comm": false, "contiguous_gradients": false'
    found = understood(tmp_path, TRAINING, f'{{"zero_optimization": {{{given}}}}}')
    assert directions(found) == {
        "zero_optimization.overlap_comm": "less",
        "zero_optimization.contiguous_gradients": "either",
    }


def test_numbers_of_deepspeed_must_be_those_of_the_training(tmp_path: Path) -> None:
    auto = '{"zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": "auto"}'
    assert words(understood(tmp_path, TRAINING, auto))["batch"] == "2"
    other = '{"zero_optimization": {"stage": 3}, "train_micro_batch_size_per_gpu": 8}'
    with pytest.raises(CannotTellError, match="contradicts per_device_train_batch_size: 2"):
        understood(tmp_path, TRAINING, other)


def test_deepspeed_keeps_frozen_weights_as_they_are(tmp_path: Path) -> None:
    adapted = f"{TRAINING}    use_peft: true\n"
    third = '{"zero_optimization": {"stage": 3}, "bf16": {"enabled": true}}'
    assert words(understood(tmp_path, adapted, third))["precision"] == "bf16-true"


def test_a_config_of_deepspeed_that_the_training_names_is_read(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text('{"zero_optimization": {"stage": 3}, "gradient_clipping": 1.0}')
    found = understood(tmp_path, f"{TRAINING}    deepspeed: mine.json\n")
    assert words(found)["strategy"] == "fsdp2"
    with pytest.raises(CannotTellError, match=r"other\.json"):
        understood(tmp_path, f"{TRAINING}    deepspeed: other.json\n")


@pytest.mark.parametrize(
    ("parameters", "state", "offload", "left_out"),
    [("cpu", "cpu", "parameters", []), ("none", "cpu", None, ["state"]), ("none", "none", None, [])],
)
def test_offloading_by_zero_3(
    tmp_path: Path, parameters: str, state: str, offload: str | None, left_out: list[str]
) -> None:
    inside = f"      zero_stage: 3\n      offload_param_device: {parameters}\n      offload_optimizer_device: {state}\n"
    launched = f"{LAUNCHED.format(kind='DEEPSPEED')}    deepspeed_config:\n{inside}"
    found = understood(tmp_path, TRAINING, launched)
    assert words(found).get("offload") == offload
    assert list(directions(found).values()) == ["less" for _ in left_out]


def test_a_config_of_deepspeed_within_the_training_is_read_with_its_lines(tmp_path: Path) -> None:
    inside = "    deepspeed:\n      zero_optimization: {stage: 2, mics_shard_size: 4}\n      gradient_clippin: 1.0\n"
    found = understood(tmp_path, f"{TRAINING}{inside}")
    assert words(found)["strategy"] == "zero2"
    assert [(each.key, each.line, each.nearest) for each in found.unknown] == [
        ("gradient_clippin", 10, "gradient_clipping")
    ]
    assert directions(found) == {"zero_optimization.mics_shard_size": "more"}


def test_accelerate_takes_stage_2_by_default(tmp_path: Path) -> None:
    found = understood(tmp_path, TRAINING, LAUNCHED.format(kind="DEEPSPEED"))
    assert words(found)["strategy"] == "zero2"
    assert not found.unmodelled


@pytest.mark.parametrize(
    ("backend", "execution", "left_out"),
    [
        ("'NO'", None, {}),
        ("INDUCTOR", "compiled", {}),
        ("CUDAGRAPHS", None, {"dynamo_config.dynamo_backend": "either"}),
    ],
)
def test_accelerate_may_compile(tmp_path: Path, backend: str, execution: str | None, left_out: dict[str, str]) -> None:
    launched = f"{LAUNCHED.format(kind='MULTI_GPU')}    dynamo_config:\n      dynamo_backend: {backend}\n"
    found = understood(tmp_path, TRAINING, launched)
    assert found.word("execution") == execution
    assert directions(found) == left_out
