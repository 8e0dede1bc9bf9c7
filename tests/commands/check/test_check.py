"""`sysbench check` on small configs, against what `sysbench fit` says of the same step."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.running import Ran, answered

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 3,
    "vocab_size": 8000,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
}

CONFIG = """\
# a small one
base_model: ./model
datasets:
  - path: tatsu-lab/alpaca
    type: alpaca
sequence_len: 512
micro_batch_size: 8   # fits?
gradient_accumulation_steps: 2
optimizer: adamw_torch_fused
bf16: true
max_steps: 100
sample_packing: true
learning_rate: 1e-4
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "train.yml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def tables(ran: Ran) -> dict[str, list[dict[str, object]]]:
    return {table["name"]: table["rows"] for table in json.loads(ran.out)["tables"]}


def test_a_config_fits_with_the_memory_that_fit_says(folder: Path) -> None:
    ran = answered("check", "train.yml", "--on", "4090", "-q", "--json", "-")
    assert ran.code == 0, ran.err
    found = tables(ran)
    (row,) = found["verdict"]
    step = ("--ctx", "512", "--batch", "8", "--grad-accum", "2", "--optimizer", "fused", "--precision", "bf16-true")
    fit = answered("fit", "--model", "hf:model", *step, "--on", "4090", "-q", "--json", "-", "--out", "of-fit")
    trial = json.loads(fit.out)["cells"][0]["trials"][0]
    assert row["needed_bytes"] == trial["gpu_bytes"] - trial["margin_bytes"]
    assert row["fits"] == "fits"
    parts = {each["part"]: each for each in found["understood"]}
    assert parts["batch"]["value"] == "8 × 2 × 1 GPU, ctx 512"
    assert parts["batch"]["key"] == "micro_batch_size, gradient_accumulation_steps, sequence_len"
    left_out = [(each["key"], each["effect"]) for each in found["left_out"]]
    assert left_out == [("base_model", "needs more"), ("sample_packing", "needs less")]  # wide norms, and packing


def test_what_does_not_fit_exits_3_with_lines_that_make_it_fit(folder: Path) -> None:
    large = CONFIG.replace("micro_batch_size: 8", "micro_batch_size: 32")
    (folder / "train.yml").write_text(large)
    ran = answered("check", "train.yml", "--on", "1.5GiB", "-q", "--write", "new.yml")
    assert ran.code == 3, ran.err
    assert "does not fit" in ran.out
    assert "saved  new.yml" in ran.err
    old, new = large.splitlines(), (folder / "new.yml").read_text().splitlines()
    changed = [line for line in new if line not in old]
    assert changed
    assert "# a small one" in new
    again = answered("check", "new.yml", "--on", "1.5GiB", "-q")
    assert again.code == 0, again.out + again.err


def test_a_compiled_step_is_simulated_where_the_same_step_does_not_fit_uncompiled(folder: Path) -> None:
    (folder / "train.yml").write_text(f"{CONFIG}torch_compile: true\n")
    uncompiled = answered("check", "train.yml", "--on", "1GiB", "-q")
    assert uncompiled.code in (1, 3), uncompiled.err
    assert "--try-compile" in uncompiled.out
    ran = answered("check", "train.yml", "--on", "1GiB", "--try-compile", "-q", "--json", "-")
    assert ran.code == 0, ran.err
    found = tables(ran)
    assert "changes_1GiB" not in found
    step = ("--ctx", "512", "--batch", "8", "--optimizer", "fused", "--precision", "bf16-true", "--mode", "train")
    simulated = answered(
        "memory", "--model", "hf:model", *step, "--grad-accum", "2", "--compile", "--simulate", "1GiB", "-q",
        "--json", "-", "--out", "of-memory",
    )  # fmt: skip
    (cell,) = json.loads(simulated.out)["cells"]
    (row,) = found["verdict"]
    assert row["to_spare_bytes"] == cell["verdict"]["margin_bytes"]


def test_a_compiled_step_that_fits_uncompiled_is_not_compiled(folder: Path) -> None:
    (folder / "train.yml").write_text(f"{CONFIG}torch_compile: true\n")
    ran = answered("check", "train.yml", "--on", "4090", "--try-compile", "-q", "--json", "-")
    assert ran.code == 0, ran.err
    left_out = {each["key"]: each for each in tables(ran)["left_out"]}
    assert left_out["torch_compile"]["effect"] == "needs less"
    assert str(left_out["torch_compile"]["reason"]).startswith("it fits uncompiled")


def test_a_step_whose_fit_depends_on_the_size_of_the_context_cannot_be_told(folder: Path) -> None:
    ran = answered("check", "train.yml", "--on", "1.1GiB", "-q")
    assert ran.code == 1
    assert "1.1GiB: cannot tell" in ran.out
    assert "are to spare if it is as small" in " ".join(ran.out.split())


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("micro_batch_size: auto", "line 7: micro_batch_size: auto is no whole number"),
        ("micro_batch_size: 0", "is less than 1"),
        ("adapter: ia3", "is an adapter that is not modelled"),
        ("bf16: true\nrl: grpo", "generates text within a step"),
        ("base_model: ./nowhere", "base_model: ./nowhere: there is no file"),
        ("adapter: lora\nlora_target_modules: [nothing_like_it]", "nothing_like_it"),
    ],
)
def test_what_cannot_be_told_exits_1_with_the_reason(folder: Path, line: str, complaint: str) -> None:
    key = line.partition(":")[0]
    kept = [each for each in CONFIG.splitlines() if not each.startswith(f"{key}:")]
    place = next((n for n, each in enumerate(CONFIG.splitlines()) if each.startswith(f"{key}:")), len(kept))
    kept.insert(place, line)
    (folder / "train.yml").write_text("\n".join(kept) + "\n")
    ran = answered("check", "train.yml", "--on", "4090", "-q")
    assert ran.code == 1, ran.out
    (said,) = (each for each in ran.err.splitlines() if each.startswith("cannot tell"))
    assert complaint in said


def test_an_unknown_key_is_named_with_its_line_and_the_nearest(folder: Path) -> None:
    (folder / "train.yml").write_text(CONFIG + "sequnce_len: 3\n")
    ran = answered("check", "train.yml", "--on", "4090", "-q", "--json", "-")
    (row,) = (each for each in tables(ran)["left_out"] if each["effect"] == "unknown")
    assert (row["key"], row["line"], row["reason"]) == ("sequnce_len", 14, "no known key; nearest: sequence_len")


def test_several_files_have_a_row_each(folder: Path) -> None:
    (folder / "other.yml").write_text(CONFIG.replace("./model", "./nowhere"))
    ran = answered("check", "train.yml", "other.yml", "--on", "4090", "-q", "--json", "-")
    assert ran.code == 1
    assert [(each["file"], each["fits"]) for each in tables(ran)["files"]] == [
        ("train.yml", "fits"),
        ("other.yml", "cannot tell"),
    ]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ((), "FILE is missing"),
        (("absent.yml",), "there is no file absent.yml"),
        (("other.yml",), "is no config of axolotl"),
        (("train.yml", "--ranks", "64"), "--ranks 64"),
        (("train.yml", "--on", "h1000"), "h1000"),
        (("accelerate.yaml",), "starts a training but does not describe it"),
        (("train.yml", "--write", "absent/new.yml"), "absent"),
    ],
)
def test_a_bad_request_exits_2_in_one_line(folder: Path, words: tuple[str, ...], complaint: str) -> None:
    (folder / "other.yml").write_text("services:\n  web: nginx\nversion: 3\n")
    (folder / "accelerate.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: 2\nmachine_rank: 0\n")
    ran = answered("check", *words)
    assert ran.code in (1, 2)
    assert complaint in ran.complaint


def test_the_number_of_gpus_is_that_of_accelerate_or_of_ranks(folder: Path) -> None:
    (folder / "accelerate.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: 2\nmachine_rank: 0\n")
    one = answered("check", "train.yml", "accelerate.yaml", "--on", "h100", "-q", "--json", "-")
    assert [row["gpu"] for row in tables(one)["verdict"]] == ["2 × h100"], one.err
    two = answered("check", "train.yml", "--ranks", "1,2", "--on", "h100", "-q", "--json", "-")
    assert [row["gpu"] for row in tables(two)["verdict"]] == ["h100", "2 × h100"], two.err


def test_memory_of_several_gpus_is_told_where_their_links_are_not_known(folder: Path) -> None:
    (folder / "train.yml").write_text(f"{CONFIG}deepspeed: zero3.json\n")
    ran = answered("check", "train.yml", "--on", "4090", "--ranks", "2", "-q", "--json", "-")
    assert ran.code == 0, ran.err
    (row,) = tables(ran)["verdict"]
    assert row["fits"] == "fits"
    assert "step_s" not in row


def test_more_gpus_than_a_node_has_are_computed_as_a_node(folder: Path) -> None:
    (folder / "launch.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: 16\nnum_machines: 2\n")
    ran = answered("check", "train.yml", "launch.yaml", "--on", "h100", "-q", "--json", "-")
    assert ran.code == 0, ran.err
    assert tables(ran)["verdict"][0]["gpu"] == "8 × h100"
    assert "16 GPUs are computed as 8" in ran.out


WINDOWED = {**LLAMA, "architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 128}
CAPPED = {**LLAMA, "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "head_dim": 64}


@pytest.mark.parametrize(("config", "left_out"), [(WINDOWED, []), (CAPPED, ["flash_attention"])])
def test_flash_attention_with_windows_and_checkpoints_is_told(
    folder: Path, config: dict[str, object], left_out: list[str]
) -> None:
    (folder / "model" / "config.json").write_text(json.dumps(config))
    lines = CONFIG.replace("sample_packing: true", "flash_attention: true\ngradient_checkpointing: true")
    (folder / "train.yml").write_text(lines)
    ran = answered("check", "train.yml", "--on", "h100", "-q", "--json", "-")
    assert ran.code == 0, ran.err
    found = tables(ran)
    assert [each["key"] for each in found.get("left_out", [])] == left_out


def test_quantized_weights_that_are_shared_between_ranks_are_computed_whole(folder: Path) -> None:
    (folder / "train.yml").write_text(f"{CONFIG}adapter: qlora\nlora_target_linear: true\nfsdp: [full_shard]\n")
    ran = answered("check", "train.yml", "--on", "h100", "--ranks", "2", "-q", "--json", "-")
    assert ran.code == 0, ran.err
    assert ("fsdp", "needs less") in [(each["key"], each["effect"]) for each in tables(ran)["left_out"]]


def test_pairs_of_axolotl_double_the_batch_and_are_written_back_halved(folder: Path) -> None:
    lines = CONFIG.replace("micro_batch_size: 8", "micro_batch_size: 16").replace("sample_packing: true", "rl: dpo")
    (folder / "train.yml").write_text(f"{lines}adapter: lora\nlora_target_linear: true\n")
    ran = answered("check", "train.yml", "--on", "1.5GiB", "-q", "--write", "new.yml", "--json", "-")
    assert ran.code == 3, ran.err
    assert tables(ran)["understood"][2]["value"] == "32 × 2 × 1 GPU, ctx 512"
    again = answered("check", "new.yml", "--on", "1.5GiB", "-q")
    assert again.code == 0, again.out + again.err


def test_ranks_share_what_the_stage_of_zero_says(folder: Path) -> None:
    needed: dict[str, float] = {}
    for stage in (0, 1, 2):
        zero = {"stage": stage, "overlap_comm": True, "reduce_bucket_size": 10_000}
        (folder / "ds.json").write_text(json.dumps({"zero_optimization": zero, "bf16": {"enabled": True}}))
        (folder / "train.yml").write_text(f"{CONFIG}deepspeed: ds.json\n")
        ran = answered("check", "train.yml", "--on", "h100", "--ranks", "1,2", "-q", "--json", "-")
        assert ran.code == 0, ran.err
        left_out = {str(each["key"]) for each in tables(ran)["left_out"]}
        assert ("zero_optimization.reduce_bucket_size" in left_out) == (stage == 0)
        one, two = tables(ran)["verdict"]
        needed[f"{stage} on one"], needed[f"{stage} on two"] = one["needed_bytes"], two["needed_bytes"]  # type: ignore[assignment]
    assert needed["0 on one"] == needed["1 on one"] == needed["2 on one"]
    assert needed["0 on two"] > needed["1 on two"] >= needed["2 on two"]


def test_an_optimizer_of_matrices_is_not_shared(folder: Path) -> None:
    (folder / "zero2.json").write_text('{"zero_optimization": {"stage": 2, "overlap_comm": true}}')
    lines = CONFIG.replace("adamw_torch_fused", "muon")
    (folder / "train.yml").write_text(f"{lines}deepspeed: zero2.json\n")
    ran = answered("check", "train.yml", "--on", "h100", "--ranks", "2", "-q", "--json", "-")
    assert ran.code == 0, ran.err
    effects = {each["key"]: each["effect"] for each in tables(ran)["left_out"]}
    assert effects["zero_optimization.stage"] == "needs less"


def test_the_verdict_comes_whatever_the_time_for_changes(folder: Path) -> None:
    (folder / "train.yml").write_text(CONFIG.replace("micro_batch_size: 8", "micro_batch_size: 32"))
    ran = answered("check", "train.yml", "--on", "1.5GiB", "-q", "--max-time", "0.01s")
    assert ran.code == 3, ran.err
    assert "does not fit" in ran.out
    assert "stopped at --max-time 0.01s: better changes may exist" in " ".join(ran.out.split())


def test_weights_of_8_bits_need_less_with_lines_that_store_them_so(folder: Path) -> None:
    needed = []
    for lines in (
        "",
        "load_in_8bit: true\n",
        "load_in_8bit: true\ngradient_checkpointing_kwargs: {use_reentrant: false}\n",
    ):
        adapted = f"{CONFIG}adapter: lora\nlora_target_linear: true\ngradient_checkpointing: true\n"
        (folder / "train.yml").write_text(adapted + lines)
        ran = answered("check", "train.yml", "--on", "h100", "-q", "--json", "-")
        assert ran.code == 0, ran.err
        left_out = [each["key"] for each in tables(ran)["left_out"]]
        assert left_out == [*([] if lines else ["adapter"]), "sample_packing"]  # fused kernels of adapters in 16 bits
        needed.append(tables(ran)["verdict"][0]["needed_bytes"])
    assert needed[1] < needed[2]  # type: ignore[operator]


def test_a_paged_optimizer_and_fp8_are_computed_as_the_nearest(folder: Path) -> None:
    lines = CONFIG.replace("adamw_torch_fused", "paged_adamw_8bit").replace("bf16: true", "fp8: true")
    (folder / "train.yml").write_text(f"{lines}fsdp: [full_shard]\n")
    ran = answered("check", "train.yml", "--on", "h100", "--ranks", "2", "-q", "--json", "-")
    assert ran.code == 0, ran.err
    effects = {each["key"]: each["effect"] for each in tables(ran)["left_out"]}
    assert (effects["optimizer"], effects["fp8"]) == ("needs less", "less or more")
