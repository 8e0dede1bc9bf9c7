"""Predicted steps of several ranks: collectives against measured ones, what overlaps, and published runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from sysbench.commands.time.spec import TimeSpec
from sysbench.predict import collectives
from sysbench.predict.rates import gpu as rates_of
from sysbench.predict.rates import typical_host
from sysbench.predict.step import predict
from sysbench.predict.trace import Kernel, Stage, Trace, TraceWriter
from sysbench.predict.tracing import trace
from sysbench.predict.walk import LAUNCH_LATENCY_S, Issued, walk
from sysbench.simulate.gpu import Gpu
from sysbench.spec.hardware import by_name
from tests.bench.prediction import neusight_ranks, simumax
from tests.predict.test_walk import GAP, HOST

MIB = 2**20


def collective(name: str, ranks: int, size_bytes: int, nodes: int = 1) -> Kernel:
    return Kernel("collective", name, "fp32", size_bytes, dims=(ranks, nodes))


@pytest.mark.parametrize(
    ("gpu", "name", "ranks", "size_bytes", "measured_s"),
    [  # nccl-tests, as collectives.py names the source
        ("a100-80gb", "all_gather", 2, MIB, 1.995e-5),
        ("a100-80gb", "all_gather", 8, 512 * MIB, 2.288e-3),
        ("a100-80gb", "all_reduce", 8, 64 * MIB, 5.953e-4),
        ("h100", "reduce_scatter", 8, 256 * MIB, 7.217e-4),
        ("h100", "all_reduce", 2, 512 * MIB, 1.686e-3),
        ("b200", "all_reduce", 2, 64 * MIB, 1.467e-4),
    ],
)
def test_collectives_take_as_long_as_measured(
    gpu: str, name: str, ranks: int, size_bytes: int, measured_s: float
) -> None:
    (predicted_s,) = collectives.seconds(collective(name, ranks, size_bytes), by_name(gpu), None, 1)
    assert predicted_s == pytest.approx(measured_s, rel=0.2)


def test_a_faster_network_helps_only_beyond_a_node() -> None:
    def taken_s(nodes: int, interconnect: Any) -> float:
        kernel = collective("all_reduce", 8 * nodes, 1024 * MIB, nodes)
        return float(collectives.seconds(kernel, by_name("h100"), interconnect, 1)[0])

    assert taken_s(1, "eth-100") == taken_s(1, "ib-400")
    assert taken_s(1, None) < taken_s(4, "ib-400") < taken_s(4, "ib-200") < taken_s(4, "eth-100")


def test_a_stream_waits_for_another_only_where_it_is_told_to() -> None:
    writer = TraceWriter()
    add = Kernel("map", "add", "fp32", 4)
    for stream, after in ((0, ()), (1, ()), (0, ()), (0, (1,))):
        writer.add_operator(Stage("forward"), "operator", [add])
        writer.assign_stream(Stage("forward"), stream, after)
    (phase,) = writer.trace().phases
    walked = walk(Issued((phase,), HOST), np.array([[1e-3]]), GAP)
    issued = 14e-6
    # The second runs beside the first; the fourth has to wait for the third, not for the second.
    assert walked.total_s[0] == pytest.approx(issued + LAUNCH_LATENCY_S + 3 * 1e-3 + 2 * GAP[0] + 20e-6)
    assert walked.device_s[0] == pytest.approx(3 * 1e-3 + 2 * GAP[0])


def test_what_the_host_does_is_worked_out_once_for_all_gpus_on_several_streams_too() -> None:
    asked = Counter[str]()

    class Asked(dict[Any, Any]):
        def __getitem__(self, name: Any) -> Any:
            asked[name] += name != "synchronize"
            return super().__getitem__(name)

    writer = TraceWriter()
    for stream in (0, 1):
        writer.add_operator(Stage("forward"), "operator", [Kernel("map", "add", "fp32", 4)])
        writer.assign_stream(Stage("forward"), stream, ())
    issued = Issued(writer.trace().phases, Asked(HOST))
    first = walk(issued, np.array([[1e-3]]), GAP)
    before = asked.copy()
    second = walk(issued, np.array([[2e-3]]), GAP)
    assert asked["operator"] == before["operator"] > 0
    assert second.host_s == first.host_s
    assert second.device_s == 2 * first.device_s


def test_launches_on_one_stream_are_in_order_whatever_number_it_has() -> None:
    written = []
    for stream in (0, 7):
        writer = TraceWriter()
        writer.add_operator(Stage("forward"), "operator", [Kernel("map", "add", "fp32", 4)])
        writer.assign_stream(Stage("forward"), stream, ())
        written += writer.trace().phases
    assert [phase.streams for phase in written] == [None, None]


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_without_exchange_only_the_last_micro_batch_reduces_gradients(strategy: str) -> None:
    small = {"layers": 1, "ctx": 128, "batch": 1, "ranks": 4, "strategy": strategy, "grad_accum": 3}
    kind = "all_reduce" if strategy == "ddp" else "reduce_scatter"

    def reduced(written: Trace) -> list[int]:
        backwards = [phase for phase in written.phases if phase.name == "backward"]
        names = [[written.kernels[i].name for i in phase.kernels.tolist()] for phase in backwards]
        return [sum(kind in name for name in of_phase) for of_phase in names]

    each, once = reduced(traced(**small)), reduced(traced(**small, no_sync="on"))
    assert each == [each[0]] * 3
    assert once == [0, 0, each[0]]
    assert each[0] > 0


def test_the_time_of_a_phase_is_that_of_all_micro_batches_and_gradients_are_added_from_the_second_on() -> None:
    small = {"layers": 1, "ctx": 128, "batch": 1, "ranks": 1, "mode": "train"}
    traces = [traced(**small, grad_accum=n) for n in (1, 3)]
    one, three = (predict(each, rates_of("h100"), typical_host()) for each in traces)
    launches = [{phase.name: phase.launches for phase in each.phases} for each in (one, three)]
    assert [phase.name for phase in three.phases] == ["forward", "loss", "backward", "optimizer"]
    assert launches[1]["forward"] == 3 * launches[0]["forward"]
    assert launches[1]["optimizer"] == launches[0]["optimizer"]
    added = [
        sum(traces[1].kernels[i].name == "add_" for i in phase.kernels.tolist())
        for phase in traces[1].phases
        if phase.name == "backward"
    ]
    parameters = 3 + 9  # embedding, head and last norm, and those of the layer
    assert added == [0, parameters, parameters]
    assert three.phases[0].time.point_s == pytest.approx(3 * one.phases[0].time.point_s)


def traced(**axes: Any) -> Trace:
    small = {"d_model": 512, "d_ff": 2048, "layers": 4, "heads": 8, "ctx": 2048, "batch": 8, "simulate": "h100"}
    (cell,) = TimeSpec(**{**small, "precision": "fp32", "mode": "forward-backward", **axes}).cells()
    step = cell.step_with(device="cuda")
    return trace(step, Gpu.of(by_name("h100")))[0]


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
@pytest.mark.parametrize(("strategy", "hidden"), [("fsdp2", True), ("ddp", True), ("tp", False)])
def test_communication_is_hidden_where_a_step_does_so(strategy: str, hidden: bool) -> None:
    found = predict(traced(ranks=4, strategy=strategy), rates_of("h100"), typical_host())
    communication_s = sum(phase.communication_s for phase in found.phases)
    exposed_s = sum(phase.exposed_s for phase in found.phases)
    assert not found.unknown
    if hidden:
        assert 0 < exposed_s < 0.5 * communication_s
    else:
        assert exposed_s == pytest.approx(communication_s, rel=0.01)


def collectives_of(written: Trace, phase: str) -> Counter[tuple[str, int]]:
    """Return how many collectives of each kind and size a phase has."""
    counts = zip(written.kernels, written.counts[phase].tolist(), strict=True)
    return Counter({(each.name, each.bytes): count for each, count in counts if count and each.kind == "collective"})


def test_smaller_buckets_are_more_collectives_and_hide_more_of_the_communication() -> None:
    exposed_s, reduced = [], []
    for bucket_mb in (8, 1000):
        written = traced(ranks=4, bucket_mb=bucket_mb)
        reduced.append(collectives_of(written, "backward"))
        exposed_s.append(predict(written, rates_of("h100"), typical_host()).phases[-1].exposed_s)
    small, one = ({size: count for (_, size), count in each.items()} for each in reduced)
    assert list(one.values()) == [1]
    assert sum(small.values()) > 5
    assert sum(size * count for size, count in small.items()) == next(iter(one))
    assert exposed_s[0] < 0.5 * exposed_s[1]


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
def test_parameters_that_are_kept_after_forward_are_not_gathered_again() -> None:
    gathered = {}
    for reshard in ((), "on", "off"):
        written = traced(ranks=4, strategy="fsdp2", reshard=reshard, layers=3)
        found = collectives_of(written, "forward"), collectives_of(written, "backward")
        gathered[reshard] = [sum(count for (name, _), count in each.items() if "gather" in name) for each in found]
    assert gathered == {(): [4, 3], "on": [4, 4], "off": [4, 0]}


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
def test_parameters_in_bf16_are_half_of_the_bytes_and_gradients_have_a_type_of_their_own() -> None:
    def sent_bytes(**axes: Any) -> dict[str, int]:
        written = traced(ranks=4, strategy="fsdp2", layers=2, **axes)
        found = dict.fromkeys(("all_gather", "reduce_scatter"), 0)
        for (name, size), count in collectives_of(written, "backward").items():
            found[name] += size * count
        return found

    whole, narrow = sent_bytes(), sent_bytes(param_dtype="bf16")
    assert narrow == {name: size // 2 for name, size in whole.items()}
    mixed = {"all_gather": narrow["all_gather"], "reduce_scatter": whole["reduce_scatter"]}
    assert sent_bytes(param_dtype="bf16", reduce_dtype="fp32") == mixed


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
def test_more_nodes_make_slower_steps_likelier_and_not_faster_ones() -> None:
    above = []
    for ranks in (8, 16, 64):
        written = traced(ranks=ranks, strategy="fsdp2", layers=2)
        assert written.nodes == ranks // 8
        network = None if ranks == 8 else "ib-400"
        time = predict(written, replace(rates_of("h100"), interconnect=network), typical_host()).time
        above.append(time.high_s / time.point_s)
        assert time.low_s < time.point_s
    assert above[0] < above[1] < above[2]


def test_published_steps_of_four_gpus_are_predicted() -> None:
    rows = list(neusight_ranks(lambda row: row["gpu"] == "h100_sxm_80" and row["batch"] == "4"))
    assert len(rows) == 3
    assert all(abs(row.error) < 0.12 and row.covered for row in rows)


def test_published_steps_of_megatron_are_predicted() -> None:
    (row,) = simumax(
        lambda row: row["model"] == "llama3-70b" and row["sharding"][:3] == "tp4" and row["grad_accum"] == "8"
    )
    assert abs(row.error) < 0.12
    assert row.covered


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")
@pytest.mark.parametrize(("optimizer", "bytes_each"), [("fused", 28), ("foreach", 140)])
def test_offloaded_shards_are_copied_before_they_are_gathered_and_their_gradients_after_they_are_reduced(
    optimizer: str, bytes_each: int
) -> None:
    ranks = 4
    small = {"layers": 2, "ctx": 64, "batch": 1, "ranks": ranks, "strategy": "fsdp2", "optimizer": optimizer}
    plain, of = (traced(**small, mode="train", offload=each) for each in ("none", "parameters"))
    assert [phase.name for phase in of.phases] == [phase.name for phase in plain.phases]
    kernels = {phase.name: [of.kernels[i] for i in phase.kernels] for phase in of.phases}
    shard_bytes = sum(each.bytes for each in kernels["forward"] if each.name == "host_to_device")
    gathered = sum(each.bytes for each in kernels["forward"] if each.name == "all_gather")
    assert shard_bytes == gathered / ranks
    assert sum(each.bytes for each in kernels["backward"] if each.name == "device_to_host") == shard_bytes
    assert kernels["optimizer"] == []
    (update,) = (phase for phase in of.phases if phase.name == "optimizer")
    assert update.host_bytes is not None
    # All ranks of a node update at the same time, at the rate of one host.
    assert sum(update.host_bytes) == pytest.approx(ranks * shard_bytes / 4 * bytes_each, rel=0.02)
    withheld = predict(of, rates_of("h100"), typical_host()).withheld
    assert withheld is not None
    assert withheld.startswith("the rate of the link between GPU and host is unknown: calibrate it")
    fast, slow = (predict(of, rates_of("h100").with_link(each), typical_host()).time.point_s for each in (1e12, 1e8))
    assert predict(plain, rates_of("h100"), typical_host()).time.point_s < fast < slow
