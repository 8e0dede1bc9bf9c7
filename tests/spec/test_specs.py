"""Specs: their defaults, the grid they expand to, and what they refuse."""

import pytest
from pydantic import ValidationError

from sysbench import formulas
from sysbench.command import Kind, runnable
from sysbench.commands.memory.spec import MemorySpec
from sysbench.commands.time.spec import TimeCell, TimeSpec
from sysbench.errors import UsageError
from sysbench.spec.cell import RunSpec
from sysbench.spec.command_options import keys_of
from sysbench.spec.grid import SIZES, ModelShape
from sysbench.spec.validation import option_of, validated


def cells(**options: object) -> list[TimeCell]:
    return list(TimeSpec.model_validate(options).cells())


def test_the_defaults_are_those_of_the_course() -> None:
    spec = TimeSpec()
    assert (spec.vocab, spec.batch, spec.warmup, spec.steps) == ((10_000,), (4,), (5,), (10,))
    assert spec.ctx == (128, 256, 512, 1024)
    assert spec.precision == ("fp32",)


@pytest.mark.parametrize(
    ("shape", "parameters"),
    [
        (SIZES["small"], 128_625_408),
        (SIZES["medium"], 423_183_360),
        (SIZES["large"], 969_411_840),
        (SIZES["xl"], 1_998_235_200),
        (SIZES["2.7b"], 3_406_809_600),
        (SIZES["2026/xl"], 3_406_809_600),
        (ModelShape(d_model=3200, d_ff=25600, layers=8, heads=4), 2_357_814_400),
        (ModelShape(d_model=512, d_ff=1344, layers=4, heads=16), 22_696_448),
    ],
)
def test_sizes_have_the_parameters_that_the_reports_quote(shape: ModelShape, parameters: int) -> None:
    assert formulas.parameters(shape) == parameters


@pytest.mark.parametrize(
    ("size", "parameters"),
    [
        ("small", 120_945_408),
        ("medium", 412_943_360),
        ("large", 956_611_840),
        ("xl", 1_982_235_200),
        ("2.7b", 3_381_209_600),
    ],
)
def test_parameters_without_the_head_are_those_that_some_reports_count(size: str, parameters: int) -> None:
    assert formulas.parameters_without_lm_head(SIZES[size]) == parameters


def test_a_run_is_the_product_of_its_axes_models_outermost() -> None:
    grid = cells(size="small,medium", ctx="128-512*2", precision="fp32,bf16")
    assert len(grid) == 12
    assert [(cell.size, cell.ctx, cell.precision) for cell in grid[:3]] == [
        ("small", 128, "fp32"),
        ("small", 128, "bf16"),
        ("small", 256, "fp32"),
    ]


def test_dimensions_replace_those_of_the_size_and_label_the_cell() -> None:
    grid = cells(size="small", layers="2,4", ctx=128)
    assert [(cell.size, cell.model.layers, cell.model.d_model) for cell in grid] == [
        ("small layers=2", 2, 768),
        ("small layers=4", 4, 768),
    ]


def test_four_dimensions_make_a_custom_model_of_no_size() -> None:
    (cell,) = cells(d_model=64, d_ff=256, layers=2, heads=4, ctx=16)
    assert cell.size == "custom"
    assert cell.model == ModelShape(d_model=64, d_ff=256, layers=2, heads=4, vocab=10_000)


def test_the_key_of_a_cell_changes_with_every_axis_and_with_nothing_else() -> None:
    (base,) = cells(ctx=128)
    assert base.key == cells(ctx="128,256")[0].key
    changes = {
        "ctx": 256,
        "batch": 5,
        "precision": "bf16",
        "mode": "forward",
        "seed": 1,
        "steps": 11,
        "warmup": 4,
        "threads": 2,
    }
    keys = {cells(**{"ctx": 128, axis: value})[0].key for axis, value in changes.items()}
    assert len(keys | {base.key}) == len(changes) + 1


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"heads": 5}, "--heads 5 does not divide --d-model 768. Nearest that does: 4"),
        (
            {"d_model": 12, "heads": 4},
            "--d-model 12 over --heads 4 gives a head width of 3, which must be even for rotary embeddings",
        ),
    ],
)
def test_a_shape_that_is_no_transformer_is_refused_on_any_device(options: dict[str, int], problem: str) -> None:
    assert str(cells(ctx=128, **options)[0].problem(None)) == problem


def test_fp16_on_the_cpu_is_refused_and_bf16_is_not() -> None:
    fp16, bf16 = cells(ctx=128, precision="fp16,bf16")
    assert str(fp16.problem("cpu")) == (
        "--precision fp16 is not supported on the CPU, which would emulate it. Use bf16 there, or --device cuda"
    )
    assert fp16.problem(None) is None
    assert fp16.problem("cuda") is None
    assert bf16.problem("cpu") is None


def test_tf32_is_a_cuda_format() -> None:
    (cell,) = cells(ctx=128, precision="tf32")
    assert str(cell.problem("mps")) == "--precision tf32 is a CUDA format. On mps use fp32"
    assert cell.problem("cuda") is None


def test_threads_are_an_axis_of_the_cpu_and_of_nothing_else() -> None:
    assert [cell.threads for cell in cells(ctx=128, threads="1,2,4")] == [1, 2, 4]
    (cell,) = cells(ctx=128, threads=2)
    assert (cell.problem("cpu"), cell.problem(None)) == (None, None)
    refused = "--threads sets how many threads compute on a CPU, not on cuda. Leave it out, or use --device cpu"
    assert str(cell.problem("cuda")) == refused
    (cell,) = cells(ctx=128, threads=2, simulate="a100-80gb")
    refused = "--threads sets how many threads compute on a CPU, but --simulate predicts a GPU. Drop one of them"
    assert str(cell.problem("cpu")) == refused


def test_a_cell_that_leaves_the_threads_to_torch_is_written_down_without_them() -> None:
    """So the cells of logs from before there were threads keep their keys."""
    (cell,) = cells(ctx=128)
    assert cell.threads is None
    assert "threads" not in cell.model_dump(mode="json")
    assert "threads" not in TimeSpec(ctx=128).model_dump(mode="json")


def test_flash_attention_with_32_bit_inputs_is_one_invalid_cell_not_a_refused_run() -> None:
    flash, naive = cells(ctx=128, attention="flash,naive")
    assert flash.problem("cuda") is None
    assert "16-bit" in str(flash.unavailable("cuda"))
    assert naive.unavailable("cuda") is None


def test_every_mode_is_a_named_sum_of_phases() -> None:
    grid = cells(ctx=128, mode="inference,forward,forward-backward,train")
    assert [cell.phases for cell in grid] == [
        ("forward",),
        ("forward",),
        ("zero_grad", "forward", "loss", "backward"),
        ("zero_grad", "forward", "loss", "backward", "optimizer"),
    ]


def test_a_share_is_written_as_percent_or_as_fraction() -> None:
    assert TimeSpec.model_validate({"until": "1%"}).until == 0.01
    assert TimeSpec.model_validate({"until": "0.02"}).until == 0.02


def test_a_spec_is_frozen_and_refuses_what_it_does_not_know() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        TimeSpec().seed = 1  # type: ignore[misc]
    with pytest.raises(ValidationError, match="Extra inputs"):
        TimeSpec.model_validate({"sizes": "small"})


def test_a_spec_survives_json() -> None:
    spec = TimeSpec.model_validate({"size": "small,2.7b", "ctx": "128-512*2", "until": "1%", "precision": "bf16"})
    assert TimeSpec.model_validate_json(spec.model_dump_json()) == spec


def test_a_search_starts_from_one_value() -> None:
    spec = MemorySpec(simulate="24GiB", find="batch", batch=(4,))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not from 4,8"):
        MemorySpec(**{**spec.model_dump(), "batch": (4, 8)})
    # The contexts of every run are a list by default.
    assert {cell.ctx for cell in MemorySpec(simulate="24GiB", find="ctx").cells()} == {128}  # type: ignore[arg-type]


FORMS = ("{}", "-{}", "{}.5", "{}GiB", "{}GB/s", "{}k", "{}%", "8-{}*2", "8-{}+1", "h100={}", "x={}", "int64[B,{}]<{}")


@pytest.mark.parametrize("kind", runnable())
def test_numbers_of_hundreds_of_digits_are_accepted_or_refused_in_a_line_by_every_option(kind: Kind) -> None:
    refusals = []
    for key in keys_of(kind).values():
        for form in () if key.is_switch or key.is_file else FORMS:
            for digits in ("9" * 309, "9" * 5000):
                word = form.format(digits, digits)
                try:
                    found = validated(key.model, {key.field: [word] if option_of(key.info).repeated else word})
                except UsageError as error:
                    refusals.append(str(error))
                    continue
                if isinstance(found, RunSpec):
                    assert [cell.key for cell in found.cells()]
    assert not [said for said in refusals if "\n" in said or "int_max_str_digits" in said], "Python's words"
