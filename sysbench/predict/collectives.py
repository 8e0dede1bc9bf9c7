"""Time of a collective on one or several nodes, from its bytes and the links between GPUs.

Within a node, the time is latency + bytes · (ring factor) / bandwidth + root · √bytes. The last term covers messages
too small to saturate the links. In a ring of n ranks, all-gather and reduce-scatter move (n−1)/n of the whole buffer
over each link, and all-reduce moves twice as much (Patarasuk and Yuan, 2009; NCCL's `busbw`). Across nodes, the network
limits the bandwidth, and each further node adds latency.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, NamedTuple

import numpy as np

from sysbench.errors import UnavailableError
from sysbench.predict.rates import Draws, normal
from sysbench.predict.trace import Kernel
from sysbench.spec.hardware import Hardware
from sysbench.spec.ranks import NODE_RANKS, Interconnect

Collective = Literal["all_gather", "reduce_scatter", "all_reduce", "broadcast"]


class Links(NamedTuple):
    """Fitted parameters of a collective's time within a node."""

    latency_us: float
    gb_per_s: float
    """Bandwidth of each link of the ring: NCCL's bus bandwidth for large messages."""
    root_ns: float
    """Coefficient of √bytes."""


_MEASURED: Mapping[str, Mapping[str, tuple[tuple[float, float, float], ...]]] = {
    "a100": {
        "all_gather": ((9.0, 176.4, 9.42), (10.7, 227.5, 12.05), (15.0, 216.8, 8.69)),
        "reduce_scatter": ((8.9, 205.2, 8.72), (10.5, 234.4, 10.11), (14.4, 221.4, 7.76)),
        "all_reduce": ((9.5, 230.1, 13.53), (13.8, 225.0, 10.49), (21.3, 229.7, 11.43)),
    },
    "h100": {
        "all_gather": ((5.1, 284.1, 4.89), (7.0, 347.3, 5.43), (10.5, 369.4, 5.16)),
        "reduce_scatter": ((5.2, 255.6, 3.71), (7.0, 326.5, 3.82), (10.3, 342.5, 2.74)),
        "all_reduce": ((5.9, 336.1, 6.01), (9.4, 364.5, 5.3), (15.4, 481.0, 8.65)),
    },
    "h200": {
        "all_gather": ((5.0, 284.4, 4.62), (7.2, 346.4, 4.89), (11.5, 366.4, 4.56)),
        "reduce_scatter": ((5.1, 259.2, 3.54), (7.0, 326.7, 3.46), (11.1, 347.5, 2.81)),
        "all_reduce": ((6.0, 334.8, 5.36), (9.6, 362.3, 4.66), (15.9, 505.7, 9.16)),
    },
    "b200": {
        "all_gather": ((8.8, 546.0, 3.5), (11.3, 717.9, 4.63), (16.6, 744.9, 5.09)),
        "reduce_scatter": ((8.8, 473.7, 2.77), (11.4, 660.5, 3.85), (16.0, 722.1, 4.64)),
        "all_reduce": ((9.9, 610.9, 4.11), (14.6, 715.0, 5.74), (24.7, 745.3, 6.77)),
    },
    "l40s": {
        "all_gather": ((5.5, 20.8, 12.46), (8.5, 4.8, 4.68), (10.0, 1.4, 72.28)),
        "reduce_scatter": ((5.0, 20.0, 12.59), (7.4, 5.0, 15.46), (8.3, 1.7, 109.41)),
        "all_reduce": ((5.6, 21.0, 16.13), (11.2, 5.2, 3.81), (17.2, 1.7, 106.3)),
    },
}
"""By GPU and collective: `Links` among 2, 4 and 8 ranks, over NVLink except for the L40S, which has PCIe.

Fitted to nccl-tests from 512 bytes to 512 MiB, with NCCL 2.27.3 (A100, L40S) and 2.29.2: aiconfigurator-core 0.12.0,
systems/data/*/nccl/*/nccl_perf.parquet, Apache-2.0, © NVIDIA. Median error of the fit 4%, 90% within 15%."""

_GROUP_SIZES = (2, 4, 8)

_MEASURED_AS: Mapping[str, str] = {
    "a100-40gb": "a100", "a100-80gb": "a100", "h100": "h100", "h200": "h200", "b200": "b200", "l40s": "l40s",
}  # fmt: skip
"""By slug of a GPU: the measured GPU with the same links. Both A100 SXM variants have the same NVLink."""

NETWORK_SHARE = 0.9
"""Fraction of a network's nominal rate that a large collective reaches: an assumption, not measured."""

NETWORK_LATENCY_S = 5e-6
"""Latency that each further node adds to a collective: an assumption; 5 to 20 µs are usual."""

SPREAD = 0.08
"""Standard deviation of the log time of a collective within a node: fit error, NCCL version, concurrent kernels."""

NETWORK_SPREAD = 0.3
"""Standard deviation of the log time of a collective across nodes."""

_GBIT_PER_S: Mapping[Interconnect, float] = {"eth-100": 100.0, "ib-200": 200.0, "ib-400": 400.0, "ib-800": 800.0}
"""By network: nominal rate of each GPU's adapter."""


def refuse_unknown_links(hardware: Hardware) -> None:
    """Raise UnavailableError for a GPU whose links were not measured."""
    if hardware.slug not in _MEASURED_AS:
        raise UnavailableError(
            f"collectives between GPUs like {hardware.title} were not measured; known GPUs:  {', '.join(_MEASURED_AS)}"
        )


def seconds(kernel: Kernel, hardware: Hardware, interconnect: Interconnect | None, count: int, seed: int = 0) -> Draws:
    """Return the seconds that a collective takes, of shape (count,).

    `kernel.dims` is (ranks, nodes), and `kernel.bytes` is the size of the whole buffer. The first draw is the nominal
    value. Raises UnavailableError for a GPU whose links were not measured.
    """
    refuse_unknown_links(hardware)
    ranks, nodes = kernel.dims
    node_ranks = ranks // nodes
    links = _links(_MEASURED_AS[hardware.slug], kernel.name, min(max(node_ranks, 2), NODE_RANKS))
    moved_bytes = kernel.bytes * (ranks - 1) / ranks * (2 if kernel.name == "all_reduce" else 1)
    taken_s = 1e-6 * links.latency_us + 1e-9 * links.root_ns * math.sqrt(kernel.bytes)
    bandwidth, spread = 1e9 * links.gb_per_s, SPREAD
    if nodes > 1:
        # Each GPU of a node has its own adapter, and NCCL has a ring through each.
        network = NETWORK_SHARE * _GBIT_PER_S[interconnect or "ib-400"] / 8 * 1e9 * node_ranks
        bandwidth, spread = (min(bandwidth, network) if node_ranks > 1 else network), NETWORK_SPREAD
        taken_s += NETWORK_LATENCY_S * (nodes - 1 if kernel.name != "all_reduce" else 2 * math.ceil(math.log2(nodes)))
    factors: Draws = np.exp(spread * normal(count, seed, f"{hardware.slug} collectives"))
    return (taken_s + moved_bytes / bandwidth) * factors


def _links(gpu: str, collective: str, ranks: int) -> Links:
    """Return the parameters for `ranks` GPUs on a node, from the smallest measured group that is large enough."""
    measured = _MEASURED[gpu]["all_gather" if collective == "broadcast" else collective]
    return Links(*measured[next(i for i, group in enumerate(_GROUP_SIZES) if ranks <= group)])
