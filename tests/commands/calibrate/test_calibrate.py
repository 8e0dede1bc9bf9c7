"""Rates from timed work: their values, the files that they go to, and a run as a user makes it."""

from __future__ import annotations

import json
import math
import tomllib
from pathlib import Path

import pytest

from sysbench.commands.calibrate.fold import MIN_SPREAD, fold, rates_of
from sysbench.commands.calibrate.hardware_file import host_toml, toml, with_measured_rates
from sysbench.commands.calibrate.record import CalibrateRecord, CaseRecord, RateName, RatesKnown, WorkTimed
from sysbench.commands.calibrate.spec import CalibrateSpec
from sysbench.log.events import CellFinished, CellStarted, Event, RunFinished, WorkerReady
from sysbench.predict.rates import LINK_RATES, GpuRates, HostRates, host_of, typical_host
from sysbench.spec import hardware
from sysbench.spec.hardware import Rate
from tests.cli.running import Ran, answered, ran_once, record_in
from tests.fixtures_timing import A100, TWO_CORES, Machine
from tests.hosts import run_started

EARLIER = Rate(value=2e12, spread=0.2, source="a guess", basis="data sheet")


def timed(rate: RateName, work: float, *samples_s: float) -> WorkTimed:
    return WorkTimed(at_s=0, cell="", rate=rate, case="work", work=work, samples_s=list(samples_s))


def calibration(machine: Machine, slug: str, *work: WorkTimed) -> CalibrateRecord:
    """The record of a run that timed this work on a machine."""
    spec = CalibrateSpec(part=("matmul",))
    (cell,) = spec.cells()
    events: list[Event] = [
        run_started(spec, host=machine.host),
        WorkerReady(at_s=0, pid=1, torch=machine.torch, devices=list(machine.devices)),
        CellStarted(at_s=0, cell=cell.key, index=0, axes=cell.model_dump(mode="json"), device=machine.device),
        RatesKnown(at_s=0, cell=cell.key, slug=slug, rates={"stream": EARLIER}),
        *(each.model_copy(update={"cell": cell.key}) for each in work),
        CellFinished(at_s=1, cell=cell.key, outcome="ok"),
        RunFinished(at_s=1, status="complete"),
    ]  # fmt: skip
    return fold(events)


def test_a_rate_is_work_over_the_median_time_and_knows_what_was_promised_and_used_before() -> None:
    record = calibration(
        A100, "a100-80gb", timed("stream", 3e9, 1e-3, 1.2e-3, 1.1e-3), timed("kernel_s", 1, 2e-6, 2e-6)
    )
    stream, kernel = record.rates
    sheet = hardware.by_name("a100-80gb").memory_bandwidth_bytes_per_s
    assert (stream.value, stream.sheet, stream.before) == (pytest.approx(3e9 / 1.1e-3), sheet, 2e12)
    assert (kernel.value, kernel.sheet, kernel.before) == (pytest.approx(2e-6), None, None)


def test_the_spread_of_a_rate_covers_how_its_cases_differ_and_is_never_nothing() -> None:
    def case(value: float, spread: float) -> CaseRecord:
        return CaseRecord(rate="stream", case="", work=1, samples_s=[1 / value], value=value, spread=spread)

    (rate,) = rates_of([case(1.0, 0.03), case(math.e**0.2, 0.03)], None, {})
    assert rate.value == pytest.approx(math.exp(0.1))
    assert rate.spread == pytest.approx(math.hypot(0.03, 0.2 / math.sqrt(2)))
    (steady,) = rates_of([case(1.0, 0.0)], None, {})
    assert steady.spread == MIN_SPREAD


def test_the_file_of_a_known_gpu_keeps_its_data_sheet_and_the_rates_that_were_not_measured(tmp_path: Path) -> None:
    record = calibration(A100, "a100-80gb", timed("stream", 3e9, 1e-3, 1e-3))
    path = tmp_path / "a100-80gb.toml"
    path.write_text(toml(with_measured_rates(record)))
    found, before = hardware.read(path), hardware.by_name("a100-80gb")
    assert found.rates["stream"].value == pytest.approx(3e12)
    assert found.rates["stream"].basis == "calibrated"
    assert found.rates["matmul_half"] == before.rates["matmul_half"]
    assert found.peak_flops_per_s == before.peak_flops_per_s
    assert found.calibration is not None
    assert found.calibration.device == A100.device.name
    assert GpuRates.of(found).sms == before.sms


EVERYTHING: tuple[RateName, ...] = (
    "matmul_fp32", "matmul_half", "attention_forward", "attention_backward", "stream", "reduce", "indexed",
    "transpose", "operator", "view", "operator_backward", "view_backward", "scalar",
)  # fmt: skip


def test_the_file_of_a_cpu_has_all_that_predictions_need(tmp_path: Path) -> None:
    record = calibration(TWO_CORES, "my-cpu", *(timed(name, 1, 1e-5, 1e-5) for name in EVERYTHING))
    path = tmp_path / "my-cpu.toml"
    path.write_text(toml(with_measured_rates(record)))
    found = hardware.read(path)
    assert found.synchronous
    assert GpuRates.of(found).rates["stream"].value == pytest.approx(1e5)
    assert host_of(found).rates["operator"].value == pytest.approx(1e-5)


def test_the_file_of_a_host_stands_alone_and_borrows_what_a_cpu_cannot_show(tmp_path: Path) -> None:
    record = calibration(TWO_CORES, "my-cpu", *(timed(name, 1, 1e-5, 1e-5) for name in EVERYTHING))
    path = tmp_path / "host.toml"
    path.write_text(host_toml(with_measured_rates(record)))
    found = HostRates.read(path)
    assert found.rates["operator"].basis == "calibrated"
    assert found.rates["launch"].basis == "borrowed"
    assert found.rates["launch"].value > 1e-6


def test_the_rates_of_a_link_go_to_the_file_of_the_gpu_and_that_of_the_update_to_the_host_too(tmp_path: Path) -> None:
    link = [timed(name, 1e9, 0.05, 0.05) for name in ("device_to_host", "host_to_device", "update")]
    record = calibration(A100, "a100-80gb", *link, *(timed(name, 1, 1e-5, 1e-5) for name in EVERYTHING))
    assert {rate.name: rate.value for rate in record.rates}["host_to_device"] == pytest.approx(2e10)
    (tmp_path / "gpu.toml").write_text(toml(with_measured_rates(record)))
    (tmp_path / "host.toml").write_text(host_toml(with_measured_rates(record)))
    gpu, host = hardware.read(tmp_path / "gpu.toml"), HostRates.read(tmp_path / "host.toml")
    assert set(LINK_RATES) <= set(GpuRates.of(gpu).rates)
    assert host_of(gpu).rates["update"].value == host.rates["update"].value == pytest.approx(2e10)
    assert host.rates["update"].basis == "calibrated"


def test_the_file_of_a_host_from_before_offloading_has_the_update_of_a_typical_host(tmp_path: Path) -> None:
    record = calibration(TWO_CORES, "my-cpu", *(timed(name, 1, 1e-5, 1e-5) for name in EVERYTHING))
    text, _, _ = host_toml(with_measured_rates(record)).partition("[rates.update]")
    (tmp_path / "host.toml").write_text(text)
    assert HostRates.read(tmp_path / "host.toml").rates["update"] == typical_host().rates["update"]


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ran, Path]:
    line = ("calibrate", "memory,launch,link", "--budget", "0.3", "--device", "cpu", "--out", "mine.toml", "--no-live")
    return ran_once(tmp_path_factory, "calibrated", *line)


def test_a_run_shows_its_rates_and_writes_them(measured: tuple[Ran, Path]) -> None:
    ran, directory = measured
    assert ran.code == 0, ran.err
    assert "elementwise kernels" in ran.out
    assert "There is no link to a GPU here: only the host's update was measured." in ran.out
    record = record_in(directory / "runs")
    found = tomllib.loads((directory / "mine.toml").read_text())
    assert {rate["name"]: rate["value"] for rate in record["rates"]}.items() <= {
        name: rate["value"] for name, rate in found["rates"].items()
    }.items()
    assert found["calibration"]["torch"] == record["environment"]["torch"]["torch"]
    assert all(rate["spread"] > 0 for rate in record["rates"])


def test_a_finished_run_is_shown_and_written_again(measured: tuple[Ran, Path], tmp_path: Path) -> None:
    ran, directory = measured
    again = answered("calibrate", "--from", "latest", "--out", str(tmp_path / "again.toml"), cwd=directory)
    assert again.out.split() == ran.out.split()
    assert (tmp_path / "again.toml").read_text() == (directory / "mine.toml").read_text()
    rows = json.loads(answered("calibrate", "--from", "latest", "--json", "-", cwd=directory).out)["rates"]
    moving = {"stream", "reduce", "indexed", "transpose", "new_memory"}
    assert {row["name"] for row in rows} == {*moving, "scalar", "update"}


@pytest.mark.parametrize(
    ("changed", "complaint"),
    [
        ({"slug": "../../elsewhere"}, "slug: String should match pattern"),
        ({"slug": "/tmp/elsewhere"}, "slug: String should match pattern"),
        ({"slug": ".."}, "slug: String should match pattern"),
        ({}, "--host needs the host's rates, which were not measured: calibrate with the part host"),
    ],
)
def test_a_refused_record_of_a_stranger_has_written_nothing(
    changed: dict[str, str], complaint: str, tmp_path: Path
) -> None:
    strange = calibration(TWO_CORES, "my-cpu", timed("stream", 3e9, 1e-3, 1e-3)).model_dump(mode="json")
    (tmp_path / "strange.json").write_text(json.dumps({**strange, **changed}))
    line = ("calibrate", "--from=strange.json", "--host=host.toml", "--json=record.json")
    refused = answered(*line, cwd=tmp_path, XDG_CONFIG_HOME=str(tmp_path / "config"))
    assert refused.code == 2
    assert complaint in refused.complaint
    assert [path.name for path in tmp_path.iterdir()] == ["strange.json"]


def test_from_a_record_only_the_files_that_were_asked_for_are_written(tmp_path: Path) -> None:
    record = calibration(TWO_CORES, "my-cpu", *(timed(name, 1, 1e-5, 1e-5) for name in EVERYTHING))
    (tmp_path / "record.json").write_text(record.model_dump_json())
    line = ("calibrate", "--from=record.json", "--host=host.toml")
    ran = answered(*line, cwd=tmp_path, XDG_CONFIG_HOME=str(tmp_path / "config"))
    assert ran.code == 0, ran.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["host.toml", "record.json"]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("nothing", "nothing is not a part"),
        ("--precision fp16 --device cpu", "--precision fp16 is not supported on the CPU"),
        ("--device cpu,cuda", "--device"),
        ("--host host.txt", "--host host.txt must end in .toml"),
        ("matmul --host host.toml", "--host host.toml needs the host's rates: add host to the parts"),
        ("--out nowhere/x.toml", "nowhere"),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(line: str, complaint: str, tmp_path: Path) -> None:
    ran = answered("calibrate", *line.split(), cwd=tmp_path)
    assert ran.code in (1, 2)
    assert complaint in ran.complaint
    assert not list(tmp_path.iterdir())
