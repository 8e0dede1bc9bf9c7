"""Files as torch.profiler writes them, of any size; and a slow reader of them that nothing can be wrong with."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

HEADER = """{
  "schemaVersion": 1,
  "deviceProperties": [
    {
      "id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85017493504,
      "computeMajor": 9, "computeMinor": 0
    }
  ],
  "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8},
  "displayTimeUnit": "ms",
  "baseTimeNanoseconds": 1712275200000000000,
  "traceEvents": [
"""
FOOTER = """
  ],
  "traceName": "/tmp/trace.json"
}
"""

KERNELS = (
    "ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn",
    "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3_warpsize1x2x1_ffma_aligna4_alignc4_execute_kernel__5x",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >"
    "(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)",
    "void (anonymous namespace)::softmax_warp_forward<float, float, float, 9, false, false>(float*, float const*, int)",
    "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, cutlass::bfloat16_t>>",
)
OPERATORS = ("aten::mm", "aten::add", "aten::_softmax", "aten::bmm", "aten::mul")


def events(launches: int, start_us: Decimal = Decimal("7024892345.123")) -> Iterator[dict[str, Any]]:
    """For each kernel an operator, the call that launches it, the kernel itself, and two ends of an arrow."""
    at_us = start_us
    for number in range(launches):
        kernel, operator = KERNELS[number % len(KERNELS)], OPERATORS[number % len(OPERATORS)]
        host = {"pid": 4711, "tid": 4711 if number % 3 else 4800}
        if number % 100 == 0:
            yield {
                "ph": "X",
                "cat": "user_annotation",
                "name": f"layers.{number % 32}",
                **host,
                "ts": at_us,
                "dur": Decimal("950.25"),
                "args": {"External id": number, "Ev Idx": number},
            }
        shapes = [[4, 128, 768], [768, 768]]
        yield {
            "ph": "X",
            "cat": "cpu_op",
            "name": operator,
            **host,
            "ts": at_us,
            "dur": Decimal("8.512"),
            "args": {
                "External id": number,
                "Sequence number": number // 2,
                "Fwd thread id": number % 2,
                "Record function id": 0,
                "Input Dims": shapes,
                "Ev Idx": number,
            },
        }
        yield {
            "ph": "X",
            "cat": "cuda_runtime",
            "name": "cudaLaunchKernel",
            **host,
            "ts": at_us + 2,
            "dur": Decimal("4.001"),
            "args": {"External id": number, "cbid": 211, "correlation": number + 1},
        }
        yield {
            "ph": "X",
            "cat": "kernel",
            "name": kernel,
            "pid": 0,
            "tid": 7,
            "ts": at_us + 40,
            "dur": Decimal(number % 97) + Decimal("0.875"),
            "args": {
                "External id": number,
                "queued": 0,
                "device": 0,
                "context": 1,
                "stream": 7,
                "correlation": number + 1,
                "registers per thread": 86,
                "shared memory": 49152,
                "blocks per SM": 2.5,
                "warps per SM": 10.0,
                "grid": [number % 64 + 1, 16, 1],
                "block": [128, 1, 1],
                "est. achieved occupancy %": 31,
            },
        }
        yield {"ph": "s", "id": number, "pid": 4711, "tid": 4711, "ts": at_us, "cat": "ac2g", "name": "ac2g"}
        yield {"ph": "f", "id": number, "pid": 0, "tid": 7, "ts": at_us + 40, "cat": "ac2g", "name": "ac2g", "bp": "e"}
        if number % 50 == 0:
            yield {
                "ph": "X",
                "cat": "gpu_memcpy",
                "name": "Memcpy HtoD (Pinned -> Device)",
                "pid": 0,
                "tid": 7,
                "ts": at_us + 41,
                "dur": Decimal("1.25"),
                "args": {"device": 0, "stream": 7, "correlation": number + 1, "bytes": 4096},
            }
        at_us += Decimal("9.875")


def text(every: Iterable[dict[str, Any]], header: str = HEADER, footer: str = FOOTER) -> Iterator[str]:
    """The file, a piece at a time."""
    yield header
    between = ""
    for event in every:
        yield between + "  " + json.dumps(event, default=_as_number)
        between = ",\n"
    yield footer


class _Exact(float):
    """A number that is written with all its digits."""

    def __new__(cls, value: Decimal) -> _Exact:
        made = super().__new__(cls, value)
        made.digits = str(value)
        return made

    digits: str

    def __repr__(self) -> str:
        return self.digits


def _as_number(value: Decimal) -> float:
    return _Exact(value)


def write(path: Path, every: Iterable[dict[str, Any]], header: str = HEADER, footer: str = FOOTER) -> None:
    """Write them down."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(text(every, header, footer))


def slowly(path: Path, category: str) -> list[dict[str, Any]]:
    """Every event of a category that lasts, by Python's own reader, with times in exact nanoseconds."""
    content = json.loads(path.read_text(encoding="utf-8"), parse_float=Decimal)
    found = [each for each in content["traceEvents"] if each.get("cat") == category and "dur" in each]
    return [{**each, "ts": int(Decimal(each["ts"]) * 1000), "dur": int(Decimal(each["dur"]) * 1000)} for each in found]
