"""Exports of Nsight Systems, of several versions and of none, are read to the nanosecond."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from sysbench.errors import LogError
from sysbench.trace import traces
from sysbench.trace.readers import nsys
from sysbench.trace.recording import COPY, KERNEL, NONE, SET
from tests.trace import nsys_files


@pytest.fixture(params=[False, True], ids=["2021", "2025"])
def export(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "report.sqlite"
    nsys_files.write(path, new=request.param, kernel_count=300, range_count=90)
    return path


def asked(path: Path, question: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as database:
        return database.execute(question).fetchall()


def test_every_number_is_that_of_the_database(export: Path) -> None:
    trace = traces.read(export).whole()
    work = trace.work
    is_kernel = work.kind == KERNEL
    rows = asked(
        export,
        "SELECT value, start, end - start, correlationId, gridX, blockX FROM CUPTI_ACTIVITY_KIND_KERNEL "
        "JOIN StringIds ON id = demangledName ORDER BY start",
    )
    read = zip(
        (trace.names[name] for name in work.name[is_kernel].tolist()),
        (work.start_ns[is_kernel] + trace.origin_ns).tolist(),
        work.duration_ns[is_kernel].tolist(),
        work.correlation[is_kernel].tolist(),
        trace.launch_shapes[work.launch_shape[is_kernel], 0].tolist(),
        trace.launch_shapes[work.launch_shape[is_kernel], 3].tolist(),
        strict=True,
    )
    assert list(read) == rows
    launches = trace.launches
    ((calls, total),) = asked(export, "SELECT count(*), sum(end - start) FROM CUPTI_ACTIVITY_KIND_RUNTIME")
    assert (len(launches.name), int(launches.duration_ns.sum())) == (calls, total)
    assert {trace.names[name] for name in set(launches.name.tolist())} == {"cudaLaunchKernel_v7000"}
    assert int(work.start_ns.min()) == 0
    assert trace.remarks == ()


def test_how_far_reading_has_come_is_told(export: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nsys, "BATCH_ROWS", 100)
    told: list[str] = []
    nsys.read(export, told.append)
    assert [each for each in told if each.endswith("kernels")] == ["100 kernels", "200 kernels", "300 kernels"]
    assert {each.split()[1] for each in told} == {"kernels", "launches", "ranges"}


def test_several_threads_read_in_parts_what_one_reads_whole(export: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(sqlite3.connect(export)) as database:  # numbers of rows need not be without gaps
        database.execute("DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE rowid BETWEEN 40 AND 120")
        database.execute("CREATE INDEX late ON CUPTI_ACTIVITY_KIND_KERNEL (deviceId, start DESC)")
        database.execute("CREATE INDEX kind ON NVTX_EVENTS (eventType, start DESC)")
        database.commit()
    alone = nsys.read(export).whole()
    monkeypatch.setattr(nsys, "processors", lambda: 3)
    monkeypatch.setattr(nsys, "BATCH_ROWS", 17)
    together = nsys.read(export).whole()
    assert alone.names == together.names
    for which in ("work", "launches", "operators", "ranges"):
        for name, column in vars(getattr(alone, which)).items():
            if not name.startswith("launch_shape"):
                assert column.tolist() == getattr(getattr(together, which), name).tolist()
    shapes = [trace.launch_shapes[trace.work.launch_shape[:200]].tolist() for trace in (alone, together)]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("value", ["'some text'", "x'00ff'"])
def test_what_is_no_number_is_an_error_that_says_so(export: Path, value: str) -> None:
    with closing(sqlite3.connect(export)) as database:
        database.execute(f"UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET correlationId = {value} WHERE rowid = 7")
        database.commit()
    with pytest.raises(LogError, match="non-numeric value in a numeric column of Nsight Systems"):
        nsys.read(export)


def test_kernels_without_a_long_name_have_their_short_one(export: Path) -> None:
    with closing(sqlite3.connect(export)) as database:
        database.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET demangledName = NULL WHERE correlationId = 7")
        database.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET gridX = NULL, shortName = NULL WHERE correlationId = 8")
        database.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET demangledName = NULL WHERE correlationId = 8")
        database.commit()
    trace = nsys.read(export).whole()
    work = trace.work
    at = {int(correlation): row for row, correlation in enumerate(work.correlation)}
    assert trace.names[work.name[at[7]]] == "ampere_sgemm_128x64_tn"
    assert trace.names[work.name[at[8]]] == "(unnamed)"
    assert (work.launch_shape[at[8]], trace.launch_shapes[work.launch_shape[at[7]]].tolist()[1:]) == (
        NONE,
        [2, 1, 128, 1, 1],
    )


def test_copies_and_sets_have_their_bytes(export: Path) -> None:
    trace = nsys.read(export).whole()
    assert trace.work.bytes[trace.work.kind == COPY].tolist() == [4096]
    assert trace.names[trace.work.name[trace.work.kind == COPY][0]] == "Memcpy HtoD"
    is_new = trace.devices == ("NVIDIA H200",)
    assert trace.work.bytes[trace.work.kind == SET].tolist() == ([512] if is_new else [])


def test_ranges_of_emit_nvtx_are_operators_with_their_sequence_numbers(export: Path) -> None:
    trace = nsys.read(export).whole()
    operators = trace.operators
    names = [trace.names[name] for name in operators.name.tolist()]
    assert names.count("aten::mm") == names.count("MmBackward0") == 30
    forward = {int(operators.sequence[at]) for at, name in enumerate(names) if name == "aten::mm"}
    backward = {int(operators.sequence[at]) for at, name in enumerate(names) if name == "MmBackward0"}
    assert forward == backward
    assert operators.forward_thread.tolist() == [NONE] * 60
    assert len(set(operators.thread.tolist())) == 2
    expected = {"layers.0.attention"} if trace.devices else {"step"}
    assert {trace.names[name] for name in trace.ranges.name.tolist()} == expected
    assert len(trace.ranges.name) == 30


def test_ranges_without_kernels_are_a_trace_that_says_so(tmp_path: Path) -> None:
    path = tmp_path / "cpu.sqlite"
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"CREATE TABLE NVTX_EVENTS ({nsys_files.OLD['NVTX_EVENTS']})")
        database.execute("INSERT INTO NVTX_EVENTS VALUES (5, 25, 59, 'forward', 7)")
        database.execute("INSERT INTO NVTX_EVENTS VALUES (6, NULL, 59, 'never left', 7)")
        database.commit()
    trace = nsys.read(path).whole()
    assert trace.ranges.duration_ns.tolist() == [20]
    assert trace.remarks == ("no GPU activity was recorded",)


@pytest.mark.parametrize("text", [7, 2.5, b"\xff\x00"])
def test_a_text_that_is_a_number_or_a_blob_costs_only_itself(tmp_path: Path, text: object) -> None:
    path = tmp_path / "report.sqlite"
    nsys_files.write(path, new=False, kernel_count=2, range_count=2)  # one operator, one range
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE loose AS SELECT * FROM NVTX_EVENTS")
        database.execute("DROP TABLE NVTX_EVENTS")
        database.execute('CREATE TABLE NVTX_EVENTS (start, "end", eventType, text, globalTid)')
        database.execute("INSERT INTO NVTX_EVENTS SELECT * FROM loose")
        database.execute("UPDATE NVTX_EVENTS SET text = ? WHERE text = 'step'", (text,))
        database.execute("CREATE TABLE strings (id INTEGER, value)")
        database.execute("INSERT INTO strings SELECT id, value FROM StringIds WHERE id != 1")
        database.execute("INSERT INTO strings VALUES (1, ?)", (text,))
        database.execute("DROP TABLE StringIds")
        database.execute("ALTER TABLE strings RENAME TO StringIds")
        database.commit()
    trace = traces.read(path).whole()
    assert [trace.names[name] for name in trace.operators.name.tolist()] == ["aten::mm"]
    assert [trace.names[name] for name in trace.ranges.name.tolist()] == ["(unnamed)"]
    kernel_names = [trace.names[name] for name in trace.work.name[trace.work.kind == KERNEL].tolist()]
    assert kernel_names == ["(unnamed)", nsys_files.STRINGS[1]]


def test_a_hostile_name_is_only_a_name(tmp_path: Path) -> None:
    path = tmp_path / "hostile.sqlite"
    name = "'); DROP TABLE StringIds; -- [red]<script>" + "x" * 10_000
    nsys_files.write(path, new=True, kernel_count=2, range_count=0)
    with closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE StringIds SET value = ? WHERE id = 1", (name,))
        database.commit()
    before = path.read_bytes()
    assert name in nsys.read(path).names
    assert path.read_bytes() == before


def database_of_another(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE bookmarks (url TEXT)")
        database.commit()


def truncated(path: Path) -> None:
    nsys_files.write(path, new=True, kernel_count=3000, range_count=10)
    path.write_bytes(path.read_bytes()[:9000])


def empty_tables(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"CREATE TABLE NVTX_EVENTS ({nsys_files.OLD['NVTX_EVENTS']})")
        database.commit()


def words_for_numbers(path: Path) -> None:
    nsys_files.write(path, new=True, kernel_count=3, range_count=0)
    with closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 'noon'")
        database.commit()


def damaged_schema(path: Path) -> None:
    nsys_files.write(path, new=True, kernel_count=3, range_count=0)
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE NVTX_EVENTS", b"CREATE \x97ABLE NVTX_EVENTS"))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (database_of_another, "is a database, but not an export of Nsight Systems"),
        (truncated, "is not a readable export of Nsight Systems"),
        (empty_tables, "has no kernels, no calls and no ranges"),
        (words_for_numbers, "has a non-numeric value"),
        (damaged_schema, "is not a readable export of Nsight Systems"),
        (
            lambda path: path.write_bytes(nsys.SQLITE + b"\x00" * 50),
            "is not a readable export of Nsight Systems",
        ),
    ],
)
def test_what_is_no_export_gets_one_line(tmp_path: Path, make: object, said: str) -> None:
    path = tmp_path / "file.sqlite"
    make(path)  # type: ignore[operator]
    with pytest.raises(LogError) as refusal:
        traces.read(path)
    assert said in str(refusal.value)
    assert str(path) in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.skipif(shutil.which("nsys") is not None, reason="Nsight Systems is here, and would read the report")
def test_a_report_without_nsys_says_how_to_have_it(tmp_path: Path) -> None:
    path = tmp_path / "report.nsys-rep"
    path.write_bytes(b"\x00" * 100)
    with pytest.raises(LogError, match="nsys export --type sqlite"):
        traces.read(path)
