"""Seconds of kernels: never against intuition, and against public measurements where these are small enough to cite."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sysbench.errors import UnavailableError
from sysbench.predict.kernels import limit, lower_bound_seconds, seconds
from sysbench.predict.rates import GPU_RATES, GpuRates, gpu, typical_host
from sysbench.predict.trace import Kernel
from sysbench.spec import hardware
from sysbench.spec.hardware import Rate

GPUS = [each.slug for each in hardware.known() if each.rates and each.compute_capability]


def product(batch: int, m: int, n: int, k: int, dtype: str = "bf16", layout: str = "TN") -> Kernel:
    size = 4 if dtype in ("fp32", "tf32") else 2
    moved = size * batch * (m * k + k * n + m * n)
    return Kernel("gemm", "mm", dtype, moved, batch * m * n, 2 * batch * m * n * k, (batch, m, n, k), layout)  # type: ignore[arg-type]


def timed(kernel: Kernel, rates: GpuRates) -> float:
    return float(seconds([kernel], rates, rates.drawn())[0, 0])


@pytest.mark.parametrize(
    ("slug", "dims", "layout", "measured_s"),
    [  # sitar-lab/NeuSight (MIT), linear.csv and bmm.csv of the test set, strict fp32
        ("h100", (1, 16384, 6144, 1536), "TN", 6302e-6),
        ("h100", (24576, 512, 512, 128), "NN", 37905e-6),
        ("v100-pcie-32gb", (1, 4096, 4096, 4096), "TN", 10159e-6),
        ("t4", (1, 8192, 1536, 50272), "TN", 323210e-6),
        ("t4", (160, 3072, 96, 3072), "NN", 112600e-6),  # a tile holds 128 columns: a quarter of the power is lost
    ],
)
def test_published_fp32_products_are_met(slug: str, dims: tuple[int, ...], layout: str, measured_s: float) -> None:
    batch, m, n, k = dims
    assert timed(product(batch, m, n, k, "fp32", layout), gpu(slug)) == pytest.approx(measured_s, rel=0.1)


@pytest.mark.parametrize(
    ("slug", "dims", "measured_s"),
    [  # aiconfigurator-core 0.12.0 (Apache-2.0), context attention, causal bf16, keys and values written to a cache
        ("a100-80gb", (64, 96, 1024, 1024, 128), 14070e-6),
        ("a100-80gb", (2, 24, 12288, 12288, 128), 9553e-6),
        ("l40s", (4, 48, 12288, 12288, 128), 44780e-6),
        ("b200", (16, 1, 4096, 4096, 128), 115.0e-6),  # few tiles a multiprocessor: the longest decides
        ("b200", (2, 48, 12288, 12288, 128), 3095e-6),
    ],
)
def test_published_attention_is_met(slug: str, dims: tuple[int, ...], measured_s: float) -> None:
    batch, heads, seq, _, width = dims
    moved = 8 * batch * heads * seq * width
    flops = 4 * batch * heads * seq * seq * width
    kernel = Kernel("attention", "", "bf16", moved, moved // 8, flops, dims, "cudnn forward causal")
    cache = Kernel("map", "copy_", "bf16", moved, moved // 4)
    assert timed(kernel, gpu(slug)) + timed(cache, gpu(slug)) == pytest.approx(measured_s, rel=0.15)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(GPUS), st.sampled_from(["fp32", "bf16"]),
    st.tuples(*[st.integers(1, 40)] * 3), st.integers(0, 2),
)  # fmt: skip
def test_more_whole_tiles_of_work_are_never_faster(
    slug: str, dtype: str, tiles: tuple[int, int, int], side: int
) -> None:
    larger = [count + (i == side) for i, count in enumerate(tiles)]
    rates = gpu(slug)
    small, large = (timed(product(1, 256 * m, 256 * n, 2048 * k, dtype), rates) for m, n, k in (tiles, larger))
    assert large >= small * (1 - 1e-9)


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(GPUS), st.floats(1.0, 3.0), st.tuples(*[st.integers(1, 5000)] * 3))
def test_a_gpu_that_is_better_in_every_rate_is_never_slower(
    slug: str, factor: float, dims: tuple[int, int, int]
) -> None:
    rates = gpu(slug)
    better = replace(
        rates,
        hardware=rates.hardware.model_copy(
            update={"peak_flops_per_s": {k: v * factor for k, v in rates.hardware.peak_flops_per_s.items()}}
        ),
        rates={
            name: rate.model_copy(update={"value": rate.value / factor if name.endswith("_s") else rate.value * factor})
            for name, rate in rates.rates.items()
        },
    )
    m, n, k = dims
    elements = m * n
    for kernel in (
        product(1, m, n, k), product(1, m, n, k, "fp32", "NN"), Kernel("map", "add", "fp32", 12 * elements, elements),
        Kernel("transpose", "copy_", "fp32", 8 * elements, elements), Kernel("reduce", "sum", "fp32", 4 * elements),
        Kernel("attention", "flash", "bf16", 512 * m, 64 * m, 256 * m * m, (1, 1, m, m, 64), "flash forward causal"),
    ):  # fmt: skip
        assert timed(kernel, better) <= timed(kernel, rates) * (1 + 1e-9)


@pytest.mark.parametrize("slug", GPUS)
def test_every_gpu_has_rates_that_say_where_they_are_from(slug: str) -> None:
    rates = gpu(slug)
    assert set(GPU_RATES) - set(rates.rates) <= {"matmul_tf32"}
    for rate in rates.rates.values():
        assert rate.spread >= (0.03 if rate.basis == "measured elsewhere" else 0.04)
        assert rate.source


@pytest.mark.parametrize("slug", GPUS)
def test_a_kernel_is_never_faster_than_its_bytes_at_the_data_sheets_bandwidth(slug: str) -> None:
    rates = gpu(slug)
    for kernel in (Kernel("map", "add", "fp32", 3 << 28, 1 << 26), Kernel("reduce", "sum", "fp32", 1 << 28, 1 << 26)):
        assert timed(kernel, rates) >= (lower_bound_seconds(kernel, rates.hardware) or 0)


def test_results_that_fit_into_a_large_l2_do_not_wait_for_memory() -> None:
    """aiconfigurator-core 0.12.0 (Apache-2.0), L40S: 18.57 and 20.89 µs, and the bytes alone would take 41 and 45."""
    rates = gpu("l40s")
    for m, n, measured_s in ((256, 65536, 18.57e-6), (1537, 12288, 20.89e-6)):
        kernel = product(1, m, n, 32)
        assert measured_s < timed(kernel, rates) < kernel.bytes / rates.hardware.memory_bandwidth_bytes_per_s


@pytest.mark.parametrize("layout", ["TN", "NN", "NT"])
def test_smaller_products_with_rows_of_odd_length_are_slower_on_tensor_cores_but_not_in_fp32(layout: str) -> None:
    rates = gpu("a100-80gb")
    half, single = (
        [timed(product(1, 4096, n, k, dtype, layout), rates) for n, k in ((4000, 1024), (3999, 1022))]
        for dtype in ("bf16", "fp32")
    )
    assert half[1] > 1.3 * half[0]
    assert single[1] <= single[0]
    assert timed(product(1, 4095, 4000, 1024), rates) <= half[0]  # the length of a batch is not that of a row in TN


def test_large_results_on_a_cpu_also_wait_for_new_memory() -> None:
    known = gpu("h100")
    new = Rate(value=2e9, spread=0.1, source="here", basis="calibrated")
    cpu = replace(known, rates={**known.rates, "new_memory": new})
    for elements, new_s in ((8 << 20, 0.0), (16 << 20, (64 << 20) / 2e9)):
        for name in ("_log_softmax", "mul_"):
            kernel = Kernel("softmax", name, "fp32", 8 * elements, elements)
            longer_s = timed(kernel, cpu) - timed(kernel, known)
            assert longer_s == pytest.approx(0.0 if name == "mul_" else new_s)


def test_what_limits_a_kernel_is_named() -> None:
    drawn = gpu("h100").drawn()
    assert limit(product(1, 8192, 8192, 8192), drawn) == "matmul"
    assert limit(Kernel("map", "add", "fp32", 3 << 30, 1 << 28), drawn) == "bandwidth"
    assert limit(Kernel("transpose", "copy_", "bf16", 1 << 28, 1 << 26), drawn) == "indexing"
    assert limit(Kernel("map", "add", "fp32", 12, 1), drawn) == "latency"


def test_a_memory_size_is_no_gpu_to_predict_for() -> None:
    with pytest.raises(UnavailableError, match="cannot be predicted: its rates are unknown"):
        gpu("24GiB")


def test_draws_begin_with_the_value_and_spread_as_they_say() -> None:
    rates = gpu("a100-80gb")
    drawn = np.log(rates.drawn(400)["matmul_half"] / rates.rates["matmul_half"].value)
    assert drawn[0] == 0
    assert np.std(drawn) == pytest.approx(rates.rates["matmul_half"].spread, rel=0.05)
    host = typical_host()
    assert np.quantile(host.drawn(400)["operator"], 0.95) > 1.6 * host.rates["operator"].value
