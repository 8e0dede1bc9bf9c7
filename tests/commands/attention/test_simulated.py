"""Attention on GPUs that are not here: what every implementation keeps and needs, and what they have not got."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from sysbench.commands.attention.measure_memory import count_memory
from sysbench.commands.attention.simulate import SimulatedAttention, simulate
from sysbench.commands.attention.spec import AttentionSpec
from sysbench.errors import UnavailableError
from sysbench.lab.attention_functions import inputs_for
from sysbench.lab.memory.accounting import round_to_block
from sysbench.simulate.allocator.settings import AllocatorSettings
from sysbench.simulate.gpu import Gpu
from sysbench.spec.attention import AttentionCell
from sysbench.spec.hardware import by_name

MIB, GIB = 2**20, 2**30
A100, H100, T4 = (Gpu.of(by_name(slug)) for slug in ("a100-80gb", "h100", "t4"))
FUSED = ("sdpa-efficient", "sdpa-flash", "sdpa-cudnn", "flex", "flash-attn")


def cell(implementation: str, **axes: object) -> AttentionCell:
    given = {"impl": implementation, "dim": "32", "seq": "300", "batch": "2", "precision": "bf16", **axes}
    (found,) = AttentionSpec(**given).cells()  # type: ignore[arg-type]
    return found


def on(gpu: Gpu, implementation: str, **axes: object) -> SimulatedAttention:
    return simulate(cell(implementation, **axes), gpu)


def _flash(q: Tensor) -> list[Tensor]:
    return _returned(torch.ops.aten._scaled_dot_product_flash_attention.default(q, q, q))


def _efficient(q: Tensor) -> list[Tensor]:
    return _returned(torch.ops.aten._scaled_dot_product_efficient_attention.default(q, q, q, None, True))


def _cudnn(q: Tensor) -> list[Tensor]:
    return _returned(torch.ops.aten._scaled_dot_product_cudnn_attention.default(q, q, q, None, True))


def _returned(results: tuple[object, ...]) -> list[Tensor]:
    """Everything but the output: what a kernel has for its backward."""
    return [each for each in results[1:] if isinstance(each, Tensor) and each.numel()]


@pytest.mark.parametrize("heads", [None, 3])
@pytest.mark.parametrize("seq", [48, 300, 1024])
@pytest.mark.parametrize(
    ("implementation", "kernel"), [("sdpa-flash", _flash), ("sdpa-efficient", _efficient), ("sdpa-cudnn", _cudnn)]
)
def test_a_fused_kernel_keeps_what_torch_says_it_returns(
    implementation: str, kernel: Callable[[Tensor], list[Tensor]], seq: int, heads: int | None
) -> None:
    kept = kernel(torch.empty(2, heads or 1, seq, 32, dtype=torch.bfloat16, device="meta"))
    expected = sum(round_to_block(tensor.numel() * tensor.element_size()) for tensor in kept)
    axes = {"heads": str(heads)} if heads else {}
    assert on(A100, implementation, seq=seq, **axes).saved_bytes == expected


@pytest.mark.parametrize(
    ("implementation", "rows", "beside"),
    [
        ("sdpa-flash", 300, 2),  # the generator's seed and offset, each in a block
        ("sdpa-efficient", 320, 2),  # rows in multiples of 32
        ("sdpa-cudnn", 300, 2),
        ("flex", 300, 0),
        ("flash-attn", 300, 1),  # the generator's state
    ],
)
def test_a_fused_kernel_keeps_one_fp32_number_for_every_query(implementation: str, rows: int, beside: int) -> None:
    result = on(A100, implementation, seq=300)
    assert result.saved_bytes == round_to_block(4 * 2 * rows) + 512 * beside
    tensors = 4 * round_to_block(2 * 2 * 300 * 32)
    assert result.before_backward_bytes == tensors + result.saved_bytes


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("implementation", ["naive", "sdpa-math"])
def test_what_is_written_out_keeps_on_a_gpu_what_real_tensors_keep_here(
    implementation: str, causal: bool, precision: str
) -> None:
    one = cell(implementation, seq=96, causal=causal, precision=precision)
    real = count_memory(one, real=inputs_for(one, torch.device("cpu")))
    assert real is not None
    simulated = simulate(one, A100)
    assert simulated.saved_bytes == real.saved_bytes
    assert simulated.before_backward_bytes == real.before_backward_bytes


@pytest.mark.parametrize("implementation", ["naive", "sdpa-math", *FUSED])
@pytest.mark.parametrize("causal", [False, True])
def test_the_tensors_at_the_peak_add_up_to_it_and_fit_into_what_is_reserved(implementation: str, causal: bool) -> None:
    result = on(A100, implementation, seq=2048, causal=causal)
    assert sum(each.size_bytes for each in result.at_peak) == result.peak_allocated_bytes
    assert result.before_backward_bytes < result.peak_allocated_bytes <= result.peak_reserved_bytes
    assert result.verdict.fits
    assert {"q", "k", "v", "gradient of the output"} <= {each.name for each in result.at_peak}


def test_the_workspaces_of_cublas_count_for_the_peak_and_not_for_what_is_kept() -> None:
    older, newer = (on(gpu, "naive", seq=512) for gpu in (A100, H100))
    of_each = [[each.size_bytes for each in found.at_peak if "cuBLAS" in each.name] for found in (older, newer)]
    count = 2 if A100.workspaces.are_kept else 1  # one a thread, or that of the product at the peak
    assert of_each == [[8_519_680] * count, [32 * MIB] * count]
    assert newer.peak_allocated_bytes - older.peak_allocated_bytes == count * (32 * MIB - 8_519_680)
    assert newer.before_backward_bytes == older.before_backward_bytes
    assert not [each for each in on(H100, "sdpa-flash", seq=512).at_peak if "cuBLAS" in each.name]


def test_what_does_not_fit_says_by_how_much_and_what_for() -> None:
    small = Gpu("a small one", 2 * GIB, (8, 0), context_bytes=GIB // 2)
    fits, beyond = (on(small, "naive", seq=seq, precision="fp32") for seq in (2048, 16384))
    assert fits.verdict.fits
    assert not beyond.verdict.fits
    assert beyond.available_bytes == 2 * GIB - GIB // 2
    assert beyond.verdict.margin_bytes == beyond.available_bytes - beyond.peak_reserved_bytes < 0
    assert sum(each.size_bytes for each in beyond.at_peak) == beyond.peak_allocated_bytes > beyond.available_bytes
    assert [2, 16384, 16384] in [each.shape for each in beyond.at_peak]


def test_the_allocators_settings_decide_about_what_is_reserved() -> None:
    one = cell("naive", seq=3000, precision="fp32")
    usual = simulate(one, A100)
    expandable = simulate(one, A100, AllocatorSettings(expandable_segments=True))
    assert expandable.saved_bytes == pytest.approx(usual.saved_bytes, abs=4 * MIB)
    assert expandable.peak_reserved_bytes != usual.peak_reserved_bytes
    limited = simulate(one, A100, AllocatorSettings(memory_fraction=0.001))
    assert not limited.verdict.fits


@pytest.mark.parametrize(
    ("gpu", "implementation", "axes", "reason"),
    [
        (T4, "naive", {}, "bf16 needs sm80 or newer; Tesla T4 is older"),
        (T4, "naive", {"precision": "tf32"}, "tf32 needs sm80"),
        (T4, "sdpa-flash", {"precision": "fp16"}, "Flash attention needs sm80 or newer"),
        (T4, "flash-attn", {"precision": "fp16"}, "flash-attn needs sm80 or newer"),
        (T4, "sdpa-cudnn", {"precision": "fp16"}, "cuDNN attention needs sm80"),
        (A100, "sdpa-flash", {"precision": "fp32"}, "takes float16, bfloat16; this is float32; add --bf16"),
        (A100, "flash-attn", {"precision": "fp32"}, "flash-attn takes float16, bfloat16; this is float32; add --bf16"),
        (A100, "sdpa-cudnn", {"precision": "fp32"}, "takes float16, bfloat16"),
        (A100, "sdpa-flash", {"dim": "264"}, "up to 256, not 264"),
        (A100, "flash-attn", {"dim": "264"}, "up to 256, not 264"),
        (A100, "sdpa-cudnn", {"dim": "136"}, "up to 128, not 136"),
        (A100, "sdpa-efficient", {"dim": "17"}, "divisible by 8, not 17"),
        (A100, "flex", {"dim": "8"}, "at least 16, not 8"),
        (A100, "no_such_module:attention", {}, "no module no_such_module"),
    ],
)
def test_what_a_gpu_has_not_got_says_so(gpu: Gpu, implementation: str, axes: dict[str, str], reason: str) -> None:
    with pytest.raises(UnavailableError, match=reason):
        on(gpu, implementation, **axes)


def test_an_odd_head_dimension_is_padded_by_flash_attention_and_needs_more() -> None:
    for implementation in ("sdpa-flash", "flash-attn"):
        odd, even = (on(A100, implementation, dim=str(dim)) for dim in (17, 24))
        assert even.saved_bytes < odd.saved_bytes < even.saved_bytes + 4 * round_to_block(2 * 2 * 300 * 24)


def test_a_function_of_ones_own_is_simulated_as_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "of_mine.py").write_text(
        "import torch\n"
        "def attention(q, k, v): return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1) @ v\n"
        "def number(q, k, v): return q.sum()\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    result = on(A100, "of_mine:attention", seq=64, precision="fp32")
    assert result.saved_bytes == 4 * 2 * 64**2, "softmax keeps its result, and so does the second product"
    with pytest.raises(UnavailableError, match="did not return attention"):
        on(A100, "of_mine:number")
    sys.modules.pop("of_mine", None)


def test_memory_grows_as_the_square_of_n_only_where_scores_are_kept() -> None:
    for implementation, power in (("naive", 2), ("sdpa-math", 2), ("sdpa-flash", 1), ("flex", 1)):
        small, large = (on(A100, implementation, seq=seq).saved_bytes for seq in (8192, 32768))
        assert math.log(large / small, 4) == pytest.approx(power, abs=0.05)
