"""What runs of different commands say of the same step, and what they are not compared in."""

from __future__ import annotations

from typing import Any

from sysbench.commands.memory.record import MemoryCellRecord, MemoryRecord
from sysbench.commands.profile.record import ProfileCellRecord, ProfileRecord
from sysbench.commands.report.agreement import prediction_agreement, profile_agreement, simulation_agreement
from sysbench.commands.report.document import ReportedRun
from sysbench.commands.time.spec import TimeSpec
from sysbench.log.events import DeviceInfo
from sysbench.log.records import EnvironmentRecord
from tests.commands.time.test_predicted import record as predicted
from tests.fixtures_findings import H100, MS, spread_about, time_cell, time_record
from tests.fixtures_memory import GIB, memory_cell
from tests.fixtures_profiles import Kernel, profile_cell
from tests.fixtures_timing import A100

_SHARED: dict[str, Any] = {
    "sysbench_version": "0.1.0",
    "source_digest": "0" * 16,
    "started_at": "2026-11-20T14:00:00Z",
    "finished_at": None,
    "status": "complete",
    "environment": EnvironmentRecord(host=A100.host, torch=A100.torch, devices=[], driver=None),
}


def timed(seconds: float, **axes: Any) -> ReportedRun:
    cell = time_cell({"forward": spread_about(seconds, seconds / 1000)}, size="large", **axes)
    return ReportedRun("times", time_record([cell]))


def profiled(*cells: ProfileCellRecord) -> ReportedRun:
    return ReportedRun("kernels", ProfileRecord(**_SHARED, spec={"kind": "profile"}, cells=list(cells)))


def memory(name: str, *cells: MemoryCellRecord) -> ReportedRun:
    return ReportedRun(name, MemoryRecord(**_SHARED, spec={"kind": "memory"}, cells=list(cells)))


def forward(total_ms: float, **axes: Any) -> ProfileCellRecord:
    return profile_cell([Kernel("ampere_sgemm_128x64_tn", "forward", total_ms, 217)], **axes)


def test_of_the_fourth_report_timing_and_profile_match() -> None:
    # "we measured 139.9ms from python benchmarking, and 141.8ms from nsys. results match"
    (found,) = profile_agreement([timed(139.9 * MS), profiled(forward(141.8))])
    assert found.text == (
        "Forward: profiled kernels account for 101% of the time measured without a profiler, so the two agree."
    )
    assert {basis.run for basis in found.bases} == {"times", "kernels"}


def test_what_kernels_do_not_fill_the_device_waited_for() -> None:
    (found,) = profile_agreement([timed(100 * MS), profiled(forward(40.0))])
    assert found.text.endswith(
        "account for 40% of the time measured without a profiler; the device was idle for the rest at large."
    )


def test_other_steps_and_other_devices_are_not_compared() -> None:
    assert not list(profile_agreement([timed(0.1), profiled(forward(100.0, ctx=512))]))
    assert not list(profile_agreement([timed(0.1, precision="bf16"), profiled(forward(100.0))]))
    assert not list(profile_agreement([timed(0.1, hardware_=H100), profiled(forward(100.0))]))
    assert not list(profile_agreement([timed(0.1)]))


def test_simulated_peaks_are_held_against_measured_ones_of_the_same_gpu() -> None:
    h100 = H100.model_copy(update={"memory_bytes": 85_017_493_504})
    measured = memory_cell(18.0 * GIB, ctx=128).model_copy(update={"device": h100})
    simulated = memory_cell(17.82 * GIB, ctx=128, simulate="h100", fits=True)
    (found,) = simulation_agreement([memory("measured", measured), memory("simulated", simulated)])
    assert found.text == "Simulated vs. measured peaks: −1.0%."
    assert found.origin == "mixed"


def test_a_simulation_for_another_gpu_or_protocol_is_not() -> None:
    on_a100 = memory_cell(18.0 * GIB, ctx=128)
    simulated = memory_cell(17.8 * GIB, ctx=128, simulate="h100", fits=True)
    training = memory_cell(60.0 * GIB, ctx=128, mode="train").model_copy(update={"device": H100})
    assert not list(simulation_agreement([memory("measured", on_a100), memory("simulated", simulated)]))
    assert not list(simulation_agreement([memory("measured", training), memory("simulated", simulated)]))


def measured_on(hardware_: DeviceInfo, *ctx_and_s: tuple[int, float]) -> ReportedRun:
    cells = [
        time_cell({"forward": spread_about(seconds, seconds / 1000)}, size="tiny", ctx=ctx, hardware_=hardware_)
        for ctx, seconds in ctx_and_s
    ]
    return ReportedRun("measured", time_record(cells))


def test_predicted_steps_are_held_against_those_measured_later_on_that_gpu() -> None:
    spec = TimeSpec(size=("tiny",), ctx=(128, 512), mode=("forward",), simulate=("h100",))
    ahead = ReportedRun("ahead", predicted(spec, (0.9, "ok"), (3.0, "ok")))  # the interval is −20 to +30%
    h100 = H100.model_copy(update={"memory_bytes": 85_017_493_504})
    (found,) = prediction_agreement([ahead, measured_on(h100, (128, 1.0), (512, 2.0))])
    assert found.text == (
        "Predicted vs. measured steps: −10% (ctx 128) to +50% (ctx 512), 1 of 2 inside their 90% intervals."
    )
    assert {basis.run for basis in found.bases} == {"ahead", "measured"}
    (alone,) = prediction_agreement([ahead, measured_on(h100, (512, 2.0))])
    assert alone.text == "Predicted vs. measured steps: +50%, 0 of 1 inside their 90% intervals."


def test_a_prediction_for_another_gpu_or_that_is_withheld_is_not() -> None:
    def ahead(slug: str, step_s: float | None) -> ReportedRun:
        spec = TimeSpec(size=("tiny",), ctx=(128,), mode=("forward",), simulate=(slug,))
        return ReportedRun("ahead", predicted(spec, (step_s, "ok")))

    measured = measured_on(H100, (128, 1.0))
    assert not list(prediction_agreement([ahead("a100-80gb", 1.0), measured]))
    assert not list(prediction_agreement([ahead("h100", None), measured]))
    h100 = measured_on(H100.model_copy(update={"memory_bytes": 85_017_493_504}), (128, 1.0))
    assert len(list(prediction_agreement([ahead("h100", None), ahead("h100", 1.0), h100]))) == 1
