"""Rates read back from traces whose kernels take what the model says at rates that are known."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sysbench.predict.derived_rates import derive_rates
from sysbench.predict.kernels import seconds
from sysbench.predict.rates import GpuRates, gpu
from sysbench.predict.trace import Kernel
from sysbench.trace import traces
from tests.cli.running import answered

ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >"
BF16 = "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn"
OPERATOR_US, VIEW_US, LAUNCH_US, GAP_US = 10.0, 2.0, 4.0, 1.5
TRUE = {"matmul_half": 1.2, "stream": 0.8}
"""What the traced GPU has of what is known of an H100."""


def real() -> GpuRates:
    known = gpu("h100")
    rates = {
        name: rate.model_copy(update={"value": rate.value * TRUE.get(name, 1.0)}) for name, rate in known.rates.items()
    }
    return replace(known, rates=rates)


def taken_us(kernel: Kernel) -> float:
    return 1e6 * float(seconds([kernel], real(), real().drawn())[0, 0])


def written(path: Path, *, shapes: bool = True, device: str = "NVIDIA H100 80GB HBM3", steps: int = 200) -> Path:
    """A trace of products, additions and views, issued one after another and run one after another."""
    m = 8192
    product = Kernel("gemm", "mm", "bf16", 6 * m * m, m * m, 2 * m**3, (1, m, m, m), "TN")
    addition = Kernel("map", "add", "fp32", 12 * m * m, m * m)
    tiny = Kernel("map", "add", "fp32", 12 * 64, 64)
    host_us, device_us, events = 0.0, 50_000.0, []
    host = {"ph": "X", "pid": 1, "tid": 1}
    for _ in range(steps):
        for name, kernel, sizes, label in (
            ("aten::mm", product, [[m, m], [m, m]], BF16), ("aten::add", addition, [[m, m], [m, m], []], ADD),
            ("aten::add", tiny, [[64], [64], []], ADD), ("aten::view", None, [[m, m], []], ""),
        ):  # fmt: skip
            arguments: dict[str, Any] = {"Input Dims": sizes} if shapes else {}
            cost_us = VIEW_US if kernel is None else OPERATOR_US + LAUNCH_US
            operator = {**host, "cat": "cpu_op", "name": name, "ts": host_us, "dur": cost_us - 0.5, "args": arguments}
            events.append(operator)
            if kernel is not None:
                correlation = {"correlation": len(events)}
                launch = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": host_us + 1, "dur": LAUNCH_US}
                events.append({**host, **launch, "args": correlation})
                place = {"ph": "X", "cat": "kernel", "name": label, "pid": 0, "tid": 7}
                time = {"ts": device_us, "dur": taken_us(kernel)}
                events.append({**place, **time, "args": {"device": 0, "stream": 7, **correlation}})
                device_us += taken_us(kernel) + GAP_US
            host_us += cost_us
    properties = [{"id": 0, "name": device, "totalGlobalMem": 85_017_493_504}]
    text = json.dumps({"schemaVersion": 1, "deviceProperties": properties, "traceEvents": events})
    path.write_bytes(gzip.compress(text.encode()))
    return path


def test_rates_of_the_traced_gpu_are_read_back(tmp_path: Path) -> None:
    shown = derive_rates(traces.read(written(tmp_path / "trace.json.gz")).whole(), gpu("h100"))
    value = {each.rate: each.work / sorted(each.samples_s)[len(each.samples_s) // 2] for each in shown.observations}
    for name in ("matmul_half", "stream"):
        assert value[name] == pytest.approx(real().rates[name].value, rel=0.03)
    assert 1 / value["gap_s"] == pytest.approx(GAP_US * 1e-6, rel=0.02)
    assert 1 / value["launch"] == pytest.approx(LAUNCH_US * 1e-6, rel=0.02)
    assert 1 / value["operator"] == pytest.approx(OPERATOR_US * 1e-6, rel=0.05)
    assert value["view"] / value["operator"] == pytest.approx(5)
    assert {"attention_forward", "transpose", "operator_backward", "matmul_fp32"} <= shown.unseen.keys()
    assert "causal" in shown.unseen["attention_forward"]


def test_the_file_of_a_trace_has_what_it_shows_and_keeps_the_rest(tmp_path: Path) -> None:
    written(tmp_path / "trace.json.gz")
    line = ("calibrate", "--from", "trace.json.gz", "--out", "h100.toml", "--host", "host.toml")
    done = answered(*line, cwd=tmp_path)
    assert done.code == 0, done.err
    assert "The file does not show these" in " ".join(done.out.split())
    text = (tmp_path / "h100.toml").read_text()
    assert "sysbench calibrate --from trace.json.gz" in text
    assert "borrowed" in text  # what was not visible
    said = answered("time", "--size", "tiny", "--simulate", "h100", "--host", "host.toml", "--plan", cwd=tmp_path)
    assert said.code == 0, said.err


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"shapes": False}, "record_shapes=True"),
        ({"device": "AMD Instinct MI250X"}, "for which there is no data sheet"),
    ],
)
def test_a_trace_that_shows_no_rates_is_refused(changes: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    written(tmp_path / "trace.json.gz", steps=20, **changes)
    done = answered("calibrate", "--from", "trace.json.gz", cwd=tmp_path)
    assert done.code != 0
    assert complaint in done.complaint
