"""`sysbench profile --simulate`: the trace of a predicted step adds up, reads back as written, and is marked."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from sysbench import formulas
from sysbench.commands.profile.figures import of_run
from sysbench.commands.profile.record import ProfileRecord
from sysbench.errors import DoesNotFitError
from sysbench.predict.recording import kernel_name, recording
from sysbench.predict.simulated_step import SimulatedStep
from sysbench.predict.trace import Kernel
from sysbench.spec.grid import ModelShape
from sysbench.spec.hardware import by_name
from sysbench.spec.model import ModelCell
from sysbench.trace import traces, window
from sysbench.trace.kernels.names import classify, precision
from sysbench.trace.summary import PARTS, ProfileSummary
from tests.cli.running import MINUTE, Ran, answered, ran_once, record_in

SHAPE = ModelShape(d_model=64, d_ff=256, layers=2, heads=4, vocab=500)
CELL = ModelCell(
    device="cuda", size="custom", model=SHAPE, ctx=32, batch=2, precision="bf16", attention="naive", execution="eager",
    optimizer="foreach", seed=0, mode="train",
)  # fmt: skip
STEP = SimulatedStep(CELL, "h100", with_modules=True, sync_per_step=True)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("predicted") / "step.json.gz"
    whole = recording(STEP.prediction, path.name)
    window.write(path, window.extract_slice(whole, window.find_window(whole, None), 1 << 40), 1 << 40)
    return path


@pytest.fixture(scope="module")
def summary(written: Path) -> ProfileSummary:
    return traces.summary_of(traces.read(written), CELL, device=by_name("h100"))


def launched() -> Counter[tuple[str, str, int]]:
    """Launches of the predicted step by phase, module and kernel."""
    counts, of = Counter[tuple[str, str, int]](), STEP.prediction.trace
    for phase in of.phases:
        modules = phase.modules[phase.issuers].tolist()
        for module, kernel in zip(modules, phase.kernels.tolist(), strict=True):
            counts[phase.name, of.modules[module], kernel] += 1
    return counts


def test_kernels_in_the_file_are_those_of_the_prediction_and_their_times_add_up(summary: ProfileSummary) -> None:
    found = STEP.prediction
    rows_ns: dict[tuple[str, str], int] = {}
    for (phase, _, kernel), count in launched().items():
        key = phase, kernel_name(found.trace.kernels[kernel])
        rows_ns[key] = rows_ns.get(key, 0) + count * int(np.rint(found.kernel_s[kernel] * 1e9))
    read_ns: dict[tuple[str, str], int] = {}
    columns = summary.spent
    for phase, kernel, total_ns in zip(columns.phase, columns.kernel, columns.total_ns, strict=True):
        key = summary.phases[phase], summary.names[kernel].name
        read_ns[key] = read_ns.get(key, 0) + total_ns
    assert read_ns == rows_ns
    assert sum(columns.calls) == found.trace.launches
    assert summary.device is not None
    assert sum(columns.total_ns) == summary.device.work_ns == summary.busy_ns  # one after the other
    assert (summary.unlinked_ns, summary.left_out, summary.remarks) == (0, 0, [])


def test_every_kernel_belongs_to_the_module_that_launched_it(summary: ProfileSummary) -> None:
    expected = Counter[tuple[str, str]]()
    for (phase, module, _), count in launched().items():
        expected[phase, module] += count
    found = dict.fromkeys(expected, 0)
    columns = summary.spent
    for phase, module, calls in zip(columns.phase, columns.module, columns.calls, strict=True):
        found[summary.phases[phase], summary.modules[module]] += calls
    assert found == expected
    assert ("backward", "layers.1.attention.attend.scores") in found
    assert all(check.found == check.expected for check in summary.checks)
    assert len(summary.checks) == 2


def test_the_parts_of_attention_have_their_peaks(summary: ProfileSummary) -> None:
    parts = {(rate.part, rate.phase): rate for rate in summary.rates if rate.part in PARTS}
    assert set(parts) == {
        (part, phase) for part in ("scores", "mask", "softmax", "output") for phase in ("forward", "backward")
    }
    assert parts["scores", "forward"].peak_flops_per_s == by_name("h100").peak_flops_per_s["bf16"]
    assert set(summary.precisions) == {"bf16"}


def test_the_work_of_kernel_classes_is_that_of_the_formulas_and_their_time_that_of_all_kernels(
    summary: ProfileSummary,
) -> None:
    classes = {(rate.part, rate.phase): rate for rate in summary.rates if rate.part not in PARTS}
    assert list(classes) == [("matmul", "forward"), ("matmul", "backward"), ("optimizer", "optimizer")]
    assert sum(rate.flops or 0 for rate in classes.values()) == formulas.step_flops_of(CELL)
    assert classes["optimizer", "optimizer"].bytes == 28 * formulas.parameters(SHAPE)
    spent, taken_ns = summary.spent, Counter[tuple[str, str]]()
    for phase, kernel, total_ns in zip(spent.phase, spent.kernel, spent.total_ns, strict=True):
        taken_ns[summary.names[kernel].class_in(summary.phases[phase]), summary.phases[phase]] += total_ns
    assert all(rate.total_ns == taken_ns[key] for key, rate in classes.items())


def test_the_roofline_says_how_far_each_class_is_from_the_data_sheet(ran: tuple[Ran, Path]) -> None:
    _, directory = ran
    shown = answered("profile", "--from", "latest", "--tables", "roofline", "--format", "csv", cwd=directory)
    rows = list(csv.DictReader(io.StringIO(shown.out)))
    assert [(row["simulate"], row["class"], row["phase"]) for row in rows] == [
        (slug, "matmul", "forward") for slug in ("a100-80gb", "rtx-4090")
    ]
    for row in rows:
        sheet = by_name(row["simulate"])
        assert float(row["bandwidth_share"]) == pytest.approx(
            float(row["bytes"]) / float(row["time_s"]) / sheet.memory_bandwidth_bytes_per_s
        )
        assert 0 < float(row["peak_share"]) < 1


def test_the_step_lasts_as_long_as_predicted_without_a_pause_between_phases(summary: ProfileSummary) -> None:
    assert summary.window_ns * 1e-9 == pytest.approx(
        STEP.prediction.time.point_s, abs=1e-9 * (2 + STEP.prediction.trace.launches)
    )
    assert STEP.prediction.time.point_s < sum(phase.time.point_s for phase in STEP.prediction.phases)


def test_profile_shows_the_step_that_time_predicts(tmp_path: Path) -> None:
    common = (
        "--simulate", "h100", "--d-model", "64", "--d-ff", "256", "--layers", "2", "--heads", "4", "--vocab", "500",
        "--ctx", "32", "--batch", "2", "--mode", "train", "--quiet", "--out",
    )  # fmt: skip
    tables = {"time": "predicted", "profile": "summary"}
    times, shown = (
        answered(kind, *common, str(tmp_path / f"{kind}.jsonl"), "--format", "csv", "--tables", names)
        for kind, names in tables.items()
    )
    (step,) = csv.DictReader(io.StringIO(times.out))
    (summary,) = csv.DictReader(io.StringIO(shown.out))
    timed_s = float(step["step_s"])
    assert float(summary["phased_step_s"]) == pytest.approx(timed_s, rel=1e-9)
    assert float(summary["step_s"]) < timed_s


def test_the_file_and_a_slice_of_it_say_that_they_are_predicted(written: Path, tmp_path: Path) -> None:
    read = traces.read(written)
    assert read.predicted
    assert read.devices == (by_name("h100").names[0],)
    part = tmp_path / "forward.json"
    window.write(part, window.extract_slice(read, window.find_window(read, "forward"), 1 << 30), 1 << 30)
    assert traces.summary_of(traces.read(part)).predicted
    lanes = [event["args"]["name"] for event in json.loads(part.read_text())["traceEvents"] if event["ph"] == "M"]
    assert any(name.endswith("PREDICTED") for name in lanes)


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        ("gemm", "bmm", "matmul"), ("attention", "flash", "attention"), ("map", "mul", "elementwise"),
        ("map", "zeros_like", "copy"), ("indexed", "add", "elementwise"), ("indexed", "cat", "copy"),
        ("map", "masked_fill", "elementwise"), ("transpose", "clone", "copy"), ("reduce", "mean", "reduction"),
        ("reduce", "amax", "reduction"), ("map", "nll_loss_backward", "copy"),
        ("softmax", "_softmax", "softmax"), ("softmax", "native_layer_norm", "normalisation"),
        ("softmax", "_fused_rms_norm", "normalisation"), ("foreach", "_foreach_add_", "optimizer"),
        ("optimizer", "_fused_adamw_", "optimizer"), ("embedding", "embedding", "embedding"),
        ("embedding", "embedding_dense_backward", "embedding"), ("embedding", "gather", "embedding"),
        ("loss", "nll_loss_forward", "reduction"), ("unknown", "sort", "other"),
    ],
)  # fmt: skip
def test_a_kernel_is_named_so_that_its_class_is_known(kind: str, name: str, expected: str) -> None:
    kernel = Kernel(kind, name, "bf16", 4, dims=(1, 2, 3, 4), layout="flash forward" if kind == "attention" else "TN")  # type: ignore[arg-type]
    assert classify(kernel_name(kernel)) == expected


@pytest.mark.parametrize("format_", ["fp32", "tf32", "bf16", "fp16"])
def test_a_product_is_named_so_that_its_format_is_known(format_: str) -> None:
    product = Kernel("gemm", "mm", format_, 4, dims=(1, 2, 3, 4), layout="TN")  # type: ignore[arg-type]
    fused = Kernel("attention", "efficient", format_, 4, layout="efficient backward causal")  # type: ignore[arg-type]
    assert precision(kernel_name(product)) == precision(kernel_name(fused)) == format_


def test_a_step_that_does_not_fit_leaves_no_trace() -> None:
    large = CELL.model_copy(update={"batch": 1 << 16, "ctx": 512})
    said = []
    with pytest.raises(DoesNotFitError, match="does not fit on Tesla T4"):
        said.extend(SimulatedStep(large.model_copy(update={"precision": "fp16"}), "t4", with_modules=True).events())


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ran, Path]:
    line = ("profile", *MINUTE, "--ctx", "32", "--mode", "forward", "--simulate", "a100-80gb,4090")
    line += ("--trace", "t.json", "--flame", "f.html")
    return ran_once(tmp_path_factory, "predicted-profile", *line)


def test_a_run_says_everywhere_that_nothing_was_measured(ran: tuple[Ran, Path]) -> None:
    done, directory = ran
    assert done.code == 0, done.err
    assert "PREDICTED, not measured" in done.out
    assert done.err.count("PREDICTED step") == 2
    cells = record_in(directory / "runs")["cells"]
    assert [cell["prediction"]["source"] for cell in cells] == ["predicted"] * 2
    assert all(cell["unprofiled"] is None and cell["coverage"] is None for cell in cells)
    assert all(cell["summary"]["predicted"] for cell in cells)
    drawn = (directory / "f-a100-80gb.html").read_text()
    assert f"PREDICTED for {by_name('a100-80gb').title}" in drawn
    reported = answered("report", "latest", "-o", "report.md", cwd=directory)
    assert reported.code == 0, reported.err
    assert "Nothing in this report was measured" in (directory / "report.md").read_text()


def test_the_trace_shows_the_same_tables_as_the_run(ran: tuple[Ran, Path]) -> None:
    _, directory = ran
    names = ("--tables", "kernels,tree,classes", "--top", "0", "--format", "csv")
    of_run, of_file = (
        list(csv.DictReader(io.StringIO(answered("profile", "--from", source, *names, cwd=directory).out)))
        for source in ("latest", "t-a100-80gb.json")
    )
    shown = [{name: row[name] for name in of_file[0]} for row in of_run if row["simulate"] == "a100-80gb"]
    assert len(shown) > 20
    assert shown == of_file
    marked = answered("profile", "--from", "t-a100-80gb.json", "--tables", "classes", cwd=directory)
    assert "PREDICTED, not measured: time by class" in marked.out


def test_no_part_is_faster_than_the_roofline_of_its_gpu(ran: tuple[Ran, Path]) -> None:
    _, directory = ran
    record = ProfileRecord.model_validate(record_in(directory / "runs"))
    for cell in record.cells:
        assert cell.summary is not None
        known = [rate for rate in cell.summary.rates if rate.flops and rate.bytes]
        assert known
        for rate in known:
            seconds = rate.total_ns * 1e-9
            assert (rate.flops or 0) / seconds < (rate.peak_flops_per_s or 0)
            assert (rate.bytes or 0) / seconds < (rate.peak_bytes_per_s or 0)
    assert [each.name for each in of_run(record)] == ["classes"]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("--simulate 24GiB", "times cannot be predicted"),
        ("--simulate h100 --device cpu", "--device applies only to profiling on a device"),
        ("--simulate h100 --with nsys", "--with applies only to profiling on a device"),
        ("--simulate h100 --active 2", "--active applies only to profiling on a device"),
        ("--simulate h100 --shapes", "--shapes applies only to profiling on a device"),
        ("--host h.toml", "--host needs --simulate GPU"),
        ("--simulate h100 --host nowhere.toml", "--host nowhere.toml is not a valid host file"),
    ],
)
def test_what_cannot_be_predicted_is_refused_in_a_line(line: str, complaint: str, tmp_path: Path) -> None:
    done = answered("profile", "--size", "tiny", *line.split(), cwd=tmp_path)
    assert done.code == 2
    assert complaint in done.complaint
    assert not (tmp_path / "runs").exists()
