"""A slice of a trace holds what belongs to its window, costs what it holds, and says where it was cut off."""

from __future__ import annotations

import gzip
import json
import re
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sysbench.commands.profile import command as profile_source
from sysbench.commands.profile import files as profile_files
from sysbench.commands.profile.spec import ProfileOptions
from sysbench.errors import UsageError
from sysbench.trace import recording as trace_recording
from sysbench.trace import traces, window
from sysbench.trace.recording import NONE, Recording, Table, Trace
from sysbench.trace.summarise import summarise
from sysbench.trace.summary import ProfileSummary
from sysbench.trace.window import MAX_ROWS, TraceSlice, Window
from tests.trace import kineto_files, nsys_files
from tests.trace.synthetic_traces import AUTOGRAD, GEMM, Builder, any_traces, recording, training

LAYERS = 3
EVERYTHING = Window(0, 10**15, None)
UNLIMITED = 10**9

Event = dict[str, Any]


def training_trace() -> Trace:
    return training(2, LAYERS, kernel_ns=1000).trace(devices=("NVIDIA H100 80GB HBM3",), rank=3)


def cut(trace: Trace, wanted: str | None = None) -> TraceSlice:
    packed_ = recording(trace)
    return window.extract_slice(packed_, window.find_window(packed_, wanted), MAX_ROWS)


def written(path: Path, found: TraceSlice, largest_bytes: int = UNLIMITED) -> list[Event]:
    window.write(path, found, largest_bytes)
    events: list[Event] = json.loads(path.read_text())["traceEvents"]
    return events


def lasting(events: list[Event]) -> Counter[tuple[str, str, int, int]]:
    return Counter(
        (each["cat"], each["name"], round(each["ts"] * 1000), round(each["dur"] * 1000))
        for each in events
        if each["ph"] == "X"
    )


# --- what is in it


def belonging(trace: Trace, start_ns: int, end_ns: int) -> Counter[tuple[str, str, int, int]]:
    """What a window holds, row by row as one would say it."""
    found: Counter[tuple[str, str, int, int]] = Counter()
    numbers = {int(each) for each in trace.launches.correlation} - {NONE}
    here = set()
    for category, part in (
        ("user_annotation", trace.ranges),
        ("cpu_op", trace.operators),
        ("cuda_runtime", trace.launches),
    ):
        for row, (start, duration, name) in enumerate(
            zip(part.start_ns.tolist(), part.duration_ns.tolist(), part.name.tolist(), strict=True)
        ):
            if start_ns <= start <= end_ns:
                found[category, trace.names[name], start, duration] += 1
                if category == "cuda_runtime":
                    here.add(int(trace.launches.correlation[row]))
    work = trace.work
    for start, duration, name, number in zip(
        *(column.tolist() for column in (work.start_ns, work.duration_ns, work.name, work.correlation)), strict=True
    ):
        launched = number in here if number in numbers else start_ns <= start <= end_ns
        if launched:
            found["kernel", trace.names[name], start, duration] += 1
    return found


@given(any_traces(), st.integers(0, 30), st.integers(0, 20), st.sampled_from([1, 3, 1000]))
@settings(max_examples=100, deadline=None)
def test_a_slice_holds_what_begins_in_its_window_and_what_was_launched_in_it(
    tmp_path_factory: pytest.TempPathFactory, trace: Trace, start_ns: int, lasting_ns: int, rows: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "w.json"
    chosen = Window(start_ns, start_ns + lasting_ns, "step")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace_recording, "_CHUNK_ROWS", rows)
        found = window.extract_slice(recording(trace), chosen, MAX_ROWS)
    events = written(path, found)
    assert lasting(events) == belonging(trace, chosen.start_ns, chosen.end_ns)
    begins = [each["ts"] for each in events if each["ph"] == "X"]
    assert begins == sorted(begins)


@given(any_traces(), st.integers(1, 20), st.sampled_from([1, 3, 1000]))
@settings(max_examples=100, deadline=None)
def test_of_more_rows_than_can_be_written_those_are_taken_out_that_begin_first(
    trace: Trace, most: int, rows: int
) -> None:
    def begins(found: TraceSlice) -> list[int]:
        return sorted(start for table in found.recording.tables for (part,) in table.chunks(0) for start in part)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trace_recording, "_CHUNK_ROWS", rows)
        whole = window.extract_slice(recording(trace), EVERYTHING, MAX_ROWS)
        first = window.extract_slice(recording(trace), EVERYTHING, most)
    every = begins(whole)
    assert begins(first) == [each for each in every if each <= every[min(most, len(every)) - 1]]
    assert first.last_ns == whole.last_ns == max(every, default=0)


def test_a_slice_holds_what_was_launched_in_it_however_late_it_ran(tmp_path: Path) -> None:
    found = cut(training_trace(), "forward")
    events = written(tmp_path / "w.json", found)
    kernels = [event for event in events if event.get("cat") == "kernel"]
    assert len(kernels) == 11 * LAYERS + 1
    assert max(event["ts"] * 1000 for event in kernels) > found.window.end_ns
    assert sum(event["ph"] == "s" for event in events) == sum(event["ph"] == "f" for event in events) == len(kernels)


def test_work_without_a_number_stands_where_it_ran_and_no_arrow_leads_to_it(tmp_path: Path) -> None:
    built = Builder()
    built.range("step", 0, 100)
    built.launch(10, NONE)
    built.kernel(GEMM, 20, 5, NONE)
    built.kernel(GEMM, 120, 5, NONE)
    events = written(tmp_path / "w.json", cut(built.trace()))
    assert [each["ts"] for each in events if each.get("cat") == "kernel"] == [0.02]
    assert not [each for each in events if each["ph"] in "sf"]


def test_threads_streams_and_devices_stay_apart_and_arrows_lead_across_them(tmp_path: Path) -> None:
    built = Builder()
    built.range("step", 0, 100)
    built.operator("aten::mm", 5, 30)
    built.operator("MmBackward0", 5, 30, AUTOGRAD)
    for number, (device, stream) in enumerate([(0, 7), (0, 8), (1, 7)]):
        built.launch(10 + number, number, number % 2)
        built.kernel(GEMM, 200 + number, 50, number, device=device, stream=stream)
    events = written(tmp_path / "w.json", cut(built.trace(devices=("A", "B"))))
    labels = {each["pid"]: each["args"]["name"] for each in events if each["ph"] == "M"}
    assert labels == {0: "made.json", 1: "A 0", 2: "B 1"}
    places = {each["id"]: [] for each in events if each["ph"] == "s"}
    for each in events:
        if each["ph"] in "sf":
            places[each["id"]].append((each["pid"], each["tid"]))
    assert places == {0: [(0, 0), (1, 7)], 1: [(0, 1), (1, 8)], 2: [(0, 0), (2, 7)]}
    assert {(each["pid"], each["tid"]) for each in events if each.get("cat") == "cpu_op"} == {(0, 0), (0, 1)}


# --- read again


def told(summary: ProfileSummary) -> dict[str, Any]:
    """All of a summary but what the file is called."""
    return summary.model_dump(exclude={"title"})


def kineto_file(path: Path) -> Callable[[], Recording]:
    kineto_files.write(path, kineto_files.events(1500))
    return lambda: traces.read(path)


def test_a_slice_of_a_whole_file_of_torch_has_the_summary_of_the_file(tmp_path: Path) -> None:
    read = kineto_file(tmp_path / "trace.json")
    for ending in (".json", ".json.gz"):
        path = tmp_path / f"w{ending}"
        window.write(path, window.extract_slice(read(), EVERYTHING, MAX_ROWS), UNLIMITED)
        assert told(summarise(traces.read(path))) == told(summarise(read()))


@given(any_traces())
@settings(max_examples=100, deadline=None)
def test_a_slice_of_any_file_of_torch_has_the_summary_of_the_file(
    tmp_path_factory: pytest.TempPathFactory, trace: Trace
) -> None:
    if not any(map(len, recording(trace).tables)):
        return
    file, again = (tmp_path_factory.getbasetemp() / name for name in ("file.json", "again.json"))
    window.write(file, window.extract_slice(recording(trace), EVERYTHING, MAX_ROWS), UNLIMITED)
    window.write(again, window.extract_slice(traces.read(file), EVERYTHING, MAX_ROWS), UNLIMITED)
    assert told(summarise(traces.read(again))) == told(summarise(traces.read(file)))


def by_name(summary: ProfileSummary) -> Counter[tuple[str, str, str, int, int]]:
    spent = summary.spent
    return Counter(
        (summary.phases[phase], summary.modules[module], summary.names[kernel].name, total_ns, calls)
        for phase, module, kernel, total_ns, calls in zip(*spent.model_dump().values(), strict=True)
    )


def test_kernels_whose_long_names_differ_in_the_end_are_different_in_a_slice(tmp_path: Path) -> None:
    built, path = Builder(), tmp_path / "w.json"
    built.range("step", 0, 100)
    for number in range(2):
        built.kernel(f"void cutlass::Kernel<{'cute::tuple<cute::C<1>>, ' * 150}{number}>", 10 * number, 5)
    window.write(path, cut(built.trace()), UNLIMITED)
    assert by_name(summarise(traces.read(path))) == by_name(summarise(recording(built.trace())))


def test_a_slice_knows_whose_gradient_is_computed_as_the_trace_does(tmp_path: Path) -> None:
    built, backward = Builder(), "autograd::engine::evaluate_function: MmBackward0"
    for thread, numbers in ((0, (1, 2)), (1, (1, 3))):
        built.range(f"layers.{thread}", 0, 10, thread)
        for place, number in enumerate(numbers):
            built.operator("aten::mm", 4 * place, 3, thread, number)
            built.operator(backward, 100 * (1 + thread) + 10 * place, 5 + thread, 2, number, thread)
    path = tmp_path / "w.json"
    window.write(path, cut(built.trace()), UNLIMITED)
    whole, again = by_name(summarise(recording(built.trace()))), by_name(summarise(traces.read(path)))
    assert whole == again
    assert {module for _, module, name, *_ in whole if name == backward} == {"layers.0", "layers.1"}


@pytest.mark.parametrize("operators", [True, False])
def test_a_slice_of_steps_spends_the_same_time_in_the_same_places(tmp_path: Path, operators: bool) -> None:
    trace, path = training(2, LAYERS, operators=operators, kernel_ns=1000).trace(), tmp_path / "w.json"
    window.write(path, window.extract_slice(recording(trace), EVERYTHING, MAX_ROWS), UNLIMITED)
    assert by_name(summarise(recording(trace))) == by_name(summarise(traces.read(path)))


@pytest.mark.parametrize("new", [True, False])
def test_a_slice_of_what_nsight_recorded_spends_the_same_time_in_the_same_places(tmp_path: Path, new: bool) -> None:
    export, path = tmp_path / "export.sqlite", tmp_path / "w.json"
    nsys_files.write(export, new=new, kernel_count=500, range_count=100)
    window.write(path, window.extract_slice(traces.read(export), EVERYTHING, MAX_ROWS), UNLIMITED)
    whole, again = summarise(traces.read(export)), summarise(traces.read(path))
    assert by_name(whole) == by_name(again)
    assert (whole.devices, whole.device, whole.window_ns) == (again.devices, again.device, again.window_ns)


def test_a_slice_tells_of_the_device_and_the_rank_as_the_trace_does(tmp_path: Path) -> None:
    path = tmp_path / "w.json.gz"
    window.write(path, cut(training_trace()), UNLIMITED)
    again = traces.read(path)
    assert (again.devices, again.rank) == (("NVIDIA H100 80GB HBM3",), 3)
    assert gzip.decompress(path.read_bytes()).endswith(b"]}\n")


# --- where it ends


@pytest.mark.parametrize("largest_bytes", [1000, 8000, 20_000])
def test_a_slice_is_no_larger_than_its_limit_and_json_to_the_end(tmp_path: Path, largest_bytes: int) -> None:
    path, found = tmp_path / "w.json", cut(training_trace())
    outcome = window.write(path, found, largest_bytes)
    events = json.loads(path.read_text())["traceEvents"]
    assert path.stat().st_size <= largest_bytes < path.stat().st_size + 500
    assert events
    assert outcome is not None
    # All of what begins before the cut is there, and nothing that begins after it.
    every = lasting(written(tmp_path / "all.json", found))
    here = lasting(events)
    assert {each for each in every if each[2] < outcome} <= set(here) <= set(every)
    assert max(start for _, _, start, _ in here) <= outcome


def test_no_event_is_shorter_than_it_is_taken_for(tmp_path: Path) -> None:
    built = Builder()
    built.range("", 0, 0)
    built.operator("", 0, 0)
    built.launches.append((0, 0, built.name(""), 0, NONE))
    built.kernel("", 0, 0)
    path = tmp_path / "w.json"
    window.write(path, cut(built.trace()), UNLIMITED)
    lines = [line for line in path.read_bytes().splitlines() if b'"ph":"X"' in line]
    assert len(lines) == 4
    assert min(len(line) for line in lines) >= window.MAX_BYTES / MAX_ROWS


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("step", r"the first [\d.]+ ns of 97.0 µs of `step`: a slice is at most 0.008 MB"),
        ("forward", r"the first [\d.]+ ns of 33.0 µs of `forward`: a slice is at most 0.008 MB"),
    ],
)
def test_a_user_is_told_how_much_of_the_window_is_in_a_slice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wanted: str, said: str
) -> None:
    found, path = cut(training_trace(), wanted), tmp_path / "w.json"
    assert profile_files.write_window(path, found).remark == ""
    monkeypatch.setattr(window, "MAX_BYTES", 8000)
    file = profile_files.write_window(path, found)
    assert file.path == path
    assert re.fullmatch(said, file.remark), file.remark


def test_a_range_that_is_not_in_the_trace_is_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=re.escape("--range forwrad not found in this trace. Did you mean forward?")):
        cut(training_trace(), "forwrad")


# --- what it costs


def long_recording(rows: int) -> Recording:
    """Operators one after the other, each with a launch and a kernel, and two ranges."""
    number = np.arange(rows, dtype=np.int64)
    one, none = np.ones(rows, np.int64), np.full(rows, NONE, np.int64)
    zero = 0 * one
    return Recording(
        title="long.json",
        names=("aten::mm", "short", "long"),
        launch_shapes=np.zeros((0, 6), np.int64),
        origin_ns=0,
        work=Table.of([10 * number + 5, one, zero, zero, zero, zero, number, none, none]),
        launches=Table.of([10 * number + 1, one, zero, zero, number]),
        operators=Table.of([10 * number, 4 * one, zero, zero, number, none, none]),
        ranges=Table.of([np.array(each, np.int64) for each in ([0, 5000], [10 * rows, 5000], [2, 1], [0, 0])]),
    )


def peak_bytes(of: Callable[[], object]) -> int:
    tracemalloc.start()
    of()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


def test_the_memory_of_a_slice_is_that_of_what_it_holds_and_not_of_the_trace(tmp_path: Path) -> None:
    rows = 400_000
    long = long_recording(rows)

    def slice_of(wanted: str | None, most: int, largest_bytes: int) -> int | None:
        found = window.extract_slice(long, window.find_window(long, wanted), most)
        return window.write(tmp_path / "w.json", found, largest_bytes)

    whole = peak_bytes(long.whole)
    assert whole > rows * 21 * 8
    assert slice_of("short", MAX_ROWS, UNLIMITED) is None
    assert slice_of("long", 2000, 100_000) is not None
    assert peak_bytes(lambda: slice_of("short", MAX_ROWS, UNLIMITED)) < whole / 4
    assert peak_bytes(lambda: slice_of("long", 2000, 100_000)) < whole / 4
    # Before it is written, a slice of the whole trace costs next to nothing beside it.
    assert peak_bytes(lambda: window.extract_slice(long, EVERYTHING, 10 * rows)) < whole / 4


# --- together with tables


def test_a_file_is_read_once_for_its_tables_and_its_slice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, slice_ = tmp_path / "trace.json", tmp_path / "w.json"
    kineto_file(path)
    opened = []
    read = traces.read

    def counted(path: Path, *others: Any) -> Recording:
        opened.append(path)
        return read(path, *others)

    monkeypatch.setattr(traces, "read", counted)
    profile_source.show([path], ProfileOptions(source=(path,), window=slice_, range="layers.0"))
    assert opened == [path]
    shown = capsys.readouterr()
    assert "aten::mm" in shown.out or "gemm" in shown.out
    assert shown.err == f"saved  {slice_}\n"
    assert [each["name"] for each in json.loads(slice_.read_text())["traceEvents"]].count("layers.0") == 1


def test_a_slice_of_a_range_that_is_not_there_is_refused_before_any_table_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, slice_ = tmp_path / "trace.json", tmp_path / "w.json"
    kineto_file(path)
    monkeypatch.delattr("sysbench.trace.summarise.summarise")
    with pytest.raises(UsageError, match=r"--range layers\.77 not found in this trace\. Did you mean layers\."):
        profile_source.show([path], ProfileOptions(source=(path,), window=slice_, range="layers.77"))
    assert capsys.readouterr().out == ""
    assert not slice_.exists()
