"""Times of attention on GPUs that are not here: of the right kernels, marked, and compared as far as they hold."""

from __future__ import annotations

import pytest

from sysbench import formulas
from sysbench.commands.attention.findings import leads, passages
from sysbench.commands.attention.fold import fold, taken_s
from sysbench.commands.attention.measure import run
from sysbench.commands.attention.record import AttentionMemory, AttentionPredicted, AttentionRecord
from sysbench.commands.attention.simulate import predicted, simulate
from sysbench.commands.attention.spec import AttentionSpec
from sysbench.commands.attention.tables import sheet, tables_for
from sysbench.errors import DoesNotFitError, UnavailableError
from sysbench.log.events import DeviceInfo, Event, GpuSimulated, StageEntered
from sysbench.log.predictions import PredictedPhase
from sysbench.predict import kernels
from sysbench.predict.rates import gpu
from sysbench.render.table import Measure
from sysbench.simulate.gpu import Gpu
from sysbench.spec.attention import AttentionCell
from sysbench.spec.hardware import by_name
from tests import fixtures_attention as runs

MARK = "PREDICTED, not measured"
H100 = by_name("h100")


def cell(implementation: str, **axes: object) -> AttentionCell:
    given = {"impl": implementation, "seq": "512", "batch": "2", "heads": "4", "precision": "bf16", **axes}
    (found,) = AttentionSpec(**given).cells()  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize(
    ("implementation", "kind", "forward", "backward", "products"),
    [
        ("naive", "gemm", 2, 4, 4),
        ("sdpa-math", "gemm", 2, 4, 4),
        ("compiled", "gemm", 2, 4, 4),
        ("sdpa-flash", "attention", 1, 1, 5),  # backward computes the scores again
        ("flash-attn", "attention", 1, 1, 5),
        ("flex", "attention", 1, 1, 5),
    ],
)
def test_the_kernels_are_those_of_one_call_and_have_the_flops_of_the_formula(
    implementation: str, kind: str, forward: int, backward: int, products: int
) -> None:
    one = cell(implementation)
    trace = simulate(one, Gpu.of(H100)).trace
    for phase, count, share in (("forward", forward, 1.0), ("backward", backward, products / 4)):
        (its,) = (each for each in trace.phases if each.name == phase)
        launched = [trace.kernels[i] for i in its.kernels if trace.kernels[i].kind == kind]
        assert len(launched) == count
        assert sum(each.flops for each in launched) == share * formulas.flops(one, phase)  # type: ignore[arg-type]


def test_a_time_is_that_of_all_kernels_and_gaps_and_holds_no_host() -> None:
    one = cell("naive", precision="tf32")
    trace = simulate(one, Gpu.of(H100)).trace
    said = predicted(one, H100, trace)
    rates = gpu("h100")
    drawn = rates.drawn()
    each_s = kernels.seconds(trace.kernels, rates, drawn)[:, 0]
    for phase, its in zip(said.phases, trace.phases, strict=True):
        assert phase.point_s == pytest.approx(float((each_s[its.kernels] + drawn["gap_s"][0]).sum()))
        assert phase.lower_bound_s < phase.low_s <= phase.point_s <= phase.high_s
        assert phase.limited_by != "host"
        assert phase.launches == len(its.kernels)
    assert {each.dtype for each in trace.kernels if each.kind == "gemm"} == {"tf32"}
    assert {each.name for each in said.constants} == set(rates.rates) - {"matmul_fp8", "unaligned"}


def test_compiled_attention_moves_fewer_bytes_and_keeps_less() -> None:
    eager, compiled = (simulate(cell(name), Gpu.of(H100)) for name in ("naive", "compiled"))
    for before, after in zip(eager.trace.phases, compiled.trace.phases, strict=True):
        assert len(after.kernels) < len(before.kernels)
        moved = [
            sum(trace.kernels[i].bytes for i in its.kernels)
            for trace, its in ((eager.trace, before), (compiled.trace, after))
        ]
        assert moved[1] < 0.6 * moved[0]
    # The weights in bf16 instead of them and the exponentials in fp32, of 2 x 4 heads and 512 x 512 scores.
    assert eager.saved_bytes - compiled.saved_bytes == pytest.approx(8 * 512**2 * 2, rel=0.01)
    here = DeviceInfo(name="a processor", type="cpu")
    said = list(run(cell("compiled", simulate="h100"), here))
    assert [type(event) for event in said] == [GpuSimulated, StageEntered, AttentionMemory, AttentionPredicted]
    assert isinstance(said[-1], AttentionPredicted)
    assert [phase.launches for phase in said[-1].phases] == [len(phase.kernels) for phase in compiled.trace.phases]
    with pytest.raises(DoesNotFitError):
        list(run(cell("compiled", simulate="h100", seq="131072"), here))


def test_of_a_mere_size_of_memory_no_time_is_predicted() -> None:
    one, size = cell("naive"), by_name("24GiB")
    with pytest.raises(UnavailableError, match=r"its rates are unknown \(matmul_fp32, "):
        predicted(one, size, simulate(one, Gpu.of(size)).trace)


SPEC = AttentionSpec(impl="naive,sdpa-flash", simulate="a100-40gb", dim="64", seq="256,1024,4096,65536")


def record(naive_s: list[float], flash_s: list[float], spread: float = 0.2) -> AttentionRecord:
    """A run in which implementations take so long at N 256, 1024 and so on, as sure as `spread`; naive runs out."""
    wanted = {"naive": iter(naive_s), "sdpa-flash": iter(flash_s)}
    by_key = {each.key: each for each in SPEC.cells()}
    events: list[Event] = []
    for event in runs.events(SPEC):
        events.append(event)
        if not isinstance(event, GpuSimulated):
            continue
        point_s = next(wanted[by_key[event.cell].implementation], None)
        if point_s is None:
            continue
        phases = [
            PredictedPhase(
                name=name, point_s=each_s, low_s=each_s / (1 + spread), high_s=each_s * (1 + spread), host_s=0,
                device_s=each_s, limited_by="matmul", limited_share=1, lower_bound_s=0, launches=1,
            )
            for name, each_s in (("forward", point_s), ("backward", 2 * point_s))
        ]  # fmt: skip
        events.append(
            AttentionPredicted(
                at_s=event.at_s, cell=event.cell, gpu=event.title, withheld=None, phases=phases, unknown_operators={},
                unknown_share=0, constants=[], doubts=[],
            )
        )  # fmt: skip
    return fold(events)


CROSSING = record([1e-3, 2e-3, 9e-3], [2e-3, 2.2e-3, 4e-3, 1.0])


def test_a_crossover_is_asserted_where_intervals_do_not_overlap_and_nowhere_else() -> None:
    (forward, backward) = passages(CROSSING.cells)
    assert (forward.slower_first, forward.other, forward.quantity) == ("sdpa-flash", "naive", "forward")
    assert (forward.crossover.below, forward.crossover.above) == (256, 4096)
    assert (backward.crossover.below, backward.crossover.above) == (256, 4096)
    assert [each.alike for each in leads(CROSSING.cells, "forward")] == [(), ("sdpa-flash",), ()]
    unsure = record([1e-3, 2e-3, 9e-3], [2e-3, 2.2e-3, 4e-3, 1.0], spread=0.6)
    assert passages(unsure.cells) == []
    assert len(leads(unsure.cells, "forward")) == 1


def test_whatever_shows_a_predicted_time_says_so() -> None:
    for name in ("comparison", "crossovers"):
        assert all(table.title.startswith(MARK) for table in tables_for(CROSSING, [name]))
    whole = sheet(CROSSING)
    assert MARK in whole.subject
    assert any(remark.text.startswith("Predicted: ") for remark in whole.remarks if remark.kind == "finding")
    (comparison,) = tables_for(CROSSING, ["comparison"])
    first = next(each for each in comparison.rows[0] if isinstance(each, Measure))
    assert (first.low, first.value, first.high) == (pytest.approx(1e-3 / 1.2), 1e-3, pytest.approx(1.2e-3))
    assert [each.source for each in CROSSING.cells] == ["predicted"] * 6 + ["simulated", "predicted"]
    assert CROSSING.cells[-2].outcome == "oom"
    assert AttentionRecord.model_validate_json(CROSSING.model_dump_json()) == CROSSING


def test_rates_are_the_formulas_flops_over_the_predicted_time() -> None:
    first = CROSSING.cells[0]
    assert first.rates["backward"].flops_per_s == pytest.approx(formulas.flops(first.cell, "backward") / 2e-3)


def test_measuring_takes_its_forwards_and_as_many_with_a_backward_within_the_limit() -> None:
    calls = SPEC.warmup + SPEC.repeats
    assert taken_s(CROSSING.cells[0]) == pytest.approx(calls * (1e-3 + 1e-3 + 2e-3))
    assert taken_s(CROSSING.cells[-1]) == pytest.approx(60.0)  # as many as fit
    assert CROSSING.cells[-2].outcome == "oom"
    assert taken_s(CROSSING.cells[-2]) == 0
