"""Files of torch.profiler, whole and broken, are read as far as they can be, to the nanosecond."""

from __future__ import annotations

import gzip
import json
import zlib
from collections import Counter
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import torch

from sysbench.commands.profile.tables import traces_sheet
from sysbench.errors import LogError
from sysbench.trace import traces
from sysbench.trace.readers import kineto, kineto_events
from sysbench.trace.recording import COPY, KERNEL, NONE
from sysbench.trace.summarise import summarise
from tests.trace import kineto_files
from tests.trace.kineto_files import FOOTER, HEADER

EPOCH = Decimal("1712275200123456.789")


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """So small that every event is cut in two somewhere."""
    monkeypatch.setattr(kineto, "PIECE_BYTES", 700)


def held_to_the_slow_reader(path: Path) -> None:
    trace = kineto.read(path).whole()
    kernels, copies = kineto_files.slowly(path, "kernel"), kineto_files.slowly(path, "gpu_memcpy")
    is_kernel = trace.work.kind == KERNEL
    expected = Counter((each["name"], each["ts"] - trace.origin_ns, each["dur"]) for each in kernels)
    work = trace.work
    columns = (work.name[is_kernel], work.start_ns[is_kernel], work.duration_ns[is_kernel])
    rows = zip(*(column.tolist() for column in columns), strict=True)
    assert Counter((trace.names[name], start, duration) for name, start, duration in rows) == expected
    assert sorted(work.correlation[is_kernel].tolist()) == sorted(each["args"]["correlation"] for each in kernels)
    shapes = trace.launch_shapes[work.launch_shape[is_kernel]].tolist()
    assert shapes == [[*each["args"]["grid"], *each["args"]["block"]] for each in kernels]
    assert work.bytes[work.kind == COPY].sum() == sum(each["args"]["bytes"] for each in copies)
    operators = kineto_files.slowly(path, "cpu_op")
    assert trace.operators.sequence.tolist() == [each["args"]["Sequence number"] for each in operators]
    assert trace.operators.duration_ns.sum() == sum(each["dur"] for each in operators)
    shapes = {trace.names[index] for index in set(trace.operators.shapes.tolist())}
    assert shapes == {json.dumps(each["args"]["Input Dims"]) for each in operators}
    launches, ranges = kineto_files.slowly(path, "cuda_runtime"), kineto_files.slowly(path, "user_annotation")
    assert len(trace.launches.name) == len(launches)
    assert [trace.names[name] for name in trace.ranges.name] == [each["name"] for each in ranges]
    assert trace.devices == ("NVIDIA H100 80GB HBM3",)
    assert trace.rank == 3
    assert trace.remarks == ()


@pytest.mark.parametrize("start_us", [Decimal("7024892345.123"), EPOCH], ids=["since-boot", "epoch"])
def test_every_number_is_that_of_a_slow_reader(tmp_path: Path, start_us: Decimal) -> None:
    path = tmp_path / "trace.json"
    kineto_files.write(path, kineto_files.events(500, start_us))
    held_to_the_slow_reader(path)


@pytest.mark.usefixtures("small_pieces")
def test_events_that_are_cut_in_two_are_whole_again(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    kineto_files.write(path, kineto_files.events(60))
    held_to_the_slow_reader(path)


def several_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto, "PART_BYTES", 20_000)
    monkeypatch.setattr(kineto, "OWN_HEAD_BYTES", 5_000)
    monkeypatch.setattr(kineto, "processors", lambda: 3)


@pytest.mark.parametrize("start_us", [Decimal("7024892345.123"), EPOCH], ids=["since-boot", "epoch"])
def test_what_several_processes_read_is_what_one_reads(
    tmp_path: Path, start_us: Decimal, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "trace.json"
    kineto_files.write(path, kineto_files.events(200, start_us))
    alone = kineto.read(path).whole()
    several_parts(monkeypatch)
    with path.open("rb") as file:
        assert kineto.read_in_parts(path, file, len(HEADER)) is not None
    held_to_the_slow_reader(path)
    together = kineto.read(path).whole()
    assert (together.names, together.origin_ns) == (alone.names, alone.origin_ns)
    for which in ("work", "launches", "operators", "ranges"):
        for name, column in vars(getattr(alone, which)).items():
            assert column.tolist() == getattr(getattr(together, which), name).tolist()
    monkeypatch.setattr(kineto, "_MODULE", "sysbench.no_such_module")
    held_to_the_slow_reader(path)


@pytest.mark.parametrize("ending", [".json", ".json.gz"])
def test_how_far_reading_has_come_is_told_until_all_is_read(
    tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kineto, "PIECE_BYTES", 5_000)
    path = tmp_path / f"trace{ending}"
    kineto_files.write(tmp_path / "plain", kineto_files.events(100))
    content = (tmp_path / "plain").read_bytes()
    path.write_bytes(gzip.compress(content) if ending.endswith("gz") else content)
    told: list[str] = []
    kineto.read(path, told.append)
    shares = [float(each.removesuffix("%")) for each in told]
    assert shares == sorted(shares)
    assert len(shares) > 5
    assert shares[-1] == 100


def test_without_another_process_a_file_is_read_in_one_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.json"
    kineto_files.write(path, kineto_files.events(100))
    several_parts(monkeypatch)
    monkeypatch.setattr("sys.executable", str(tmp_path / "no-python"))
    held_to_the_slow_reader(path)


@pytest.mark.parametrize("nested", ['{"ph": "X", "a": 1}, {"ph": "X", "b": 2}', "}, {"])
def test_parts_that_do_not_fit_together_are_read_in_one_go(
    tmp_path: Path, nested: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One event holds what looks like many, or has a name that does; every part would begin within it."""
    several_parts(monkeypatch)
    path = tmp_path / "trace.json"
    events = [*kineto_files.events(3)]
    events[-1] = {**events[-1], "args": {}}
    many = f"[{', '.join([nested] * 5000)}]"
    events[-1]["args"]["note"] = json.loads(many) if nested.startswith("{") else many
    kineto_files.write(path, events)
    trace = kineto.read(path).whole()
    assert len(trace.work.name) == len(kineto_files.slowly(path, "kernel")) + len(
        kineto_files.slowly(path, "gpu_memcpy")
    )
    assert trace.remarks == ()


def test_a_file_that_is_cut_off_in_its_last_part_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    several_parts(monkeypatch)
    path = tmp_path / "trace.json"
    content = whole(200)[:-300]
    path.write_bytes(content)
    (remark,) = kineto.read(path).remarks
    byte = int(remark.removeprefix("cut off: read to byte ").replace(",", ""))
    assert content[:byte].rstrip(b",").endswith(b"}")
    assert len(content) - byte < 1000


def test_gzip_and_bare_lists_of_events_hold_the_same(tmp_path: Path) -> None:
    plain, packed, bare = (tmp_path / name for name in ("a.json", "b.json.gz", "c.json"))
    kineto_files.write(plain, kineto_files.events(50))
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    bare.write_text(json.dumps(json.loads(plain.read_text())["traceEvents"], indent=1))
    twice = tmp_path / "d.json.gz"
    half = len(plain.read_bytes()) // 2
    twice.write_bytes(gzip.compress(plain.read_bytes()[:half]) + gzip.compress(plain.read_bytes()[half:]))
    totals = {int(traces.read(path).whole().work.duration_ns.sum()) for path in (plain, packed, bare, twice)}
    assert len(totals) == 1


def test_a_real_profile_has_as_many_operators_as_torch_counts(tmp_path: Path) -> None:
    x = torch.randn(16, 16, requires_grad=True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiler:
        with torch.profiler.record_function("layers.0"):
            y = torch.softmax(x @ x, dim=-1)
        y.sum().backward()
    path = tmp_path / "real.json"
    profiler.export_chrome_trace(str(path))
    trace = kineto.read(path).whole()
    read = Counter(trace.names[name] for name in trace.operators.name.tolist())
    assert read == Counter(each["name"] for each in kineto_files.slowly(path, "cpu_op"))
    assert {event.name for event in profiler.events()} - set(read) == {"layers.0"}
    assert [trace.names[name] for name in trace.ranges.name] == ["layers.0"]
    backward = [index for index, name in enumerate(trace.operators.name) if trace.names[name] == "MmBackward0"]
    forward = [index for index, name in enumerate(trace.operators.name) if trace.names[name] == "aten::mm"]
    (caused,) = {int(trace.operators.sequence[index]) for index in backward}
    assert caused in {int(trace.operators.sequence[index]) for index in forward} | {
        int(trace.operators.sequence[index])
        for index, name in enumerate(trace.operators.name)
        if trace.names[name] == "aten::matmul"
    }


# --- broken


def whole(events: int = 40) -> bytes:
    return "".join(kineto_files.text(kineto_files.events(events))).encode()


@pytest.mark.parametrize("share", [0.3, 0.5, 0.77, 0.95])
@pytest.mark.parametrize("small", [True, False])
def test_a_file_that_is_cut_off_gives_what_it_has_and_says_where(
    tmp_path: Path, share: float, small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if small:
        monkeypatch.setattr(kineto, "PIECE_BYTES", 900)
    path, content = tmp_path / "cut.json", whole()
    path.write_bytes(content[: int(len(content) * share)])
    trace = kineto.read(path).whole()
    kernels = content[: int(len(content) * share)].count(b'"cat": "kernel"')
    assert kernels - 1 <= int((trace.work.kind == KERNEL).sum()) <= kernels
    (remark,) = trace.remarks
    byte = int(remark.removeprefix("cut off: read to byte ").replace(",", ""))
    assert content[:byte].rstrip().rstrip(b",").endswith(b"}")
    assert int(len(content) * share) - byte < 1000


def test_damaged_gzip_gives_what_comes_before_the_damage(tmp_path: Path) -> None:
    path = tmp_path / "cut.json.gz"
    packed = gzip.compress(whole(4000))
    path.write_bytes(packed[: len(packed) // 2])
    trace = kineto.read(path).whole()
    assert 500 < len(trace.work.name) < 4080
    assert any(remark.startswith("cut off: read to byte ") for remark in trace.remarks)


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("piece_bytes", [3000, 512 * 1024])
@pytest.mark.parametrize("operator", [0, 20, 39])
@pytest.mark.parametrize(
    ("old", "new", "invalid"),
    [
        (b'"ts": 70', b'"ts": 70\xe7\xf5', b"\xe7"),
        (b'"cat": "cpu', b'"cat":\xd2"cpu', b"\xd2"),
        (b'"tid": 4', b'"tid": nil4', b"nil"),
        (b'"name": "aten', b'"name": aten', b"aten"),
        (b"[[4, 128", b"[[4 128", b"128"),
        (b'"args": {', b'"args" {', b'{"External'),
        (b'"args": {', b'"args": {{', b'{"External'),
        (b'{"ph": "X"', b'"ph": "X"', b'"ph"'),
        (b'{"ph": "X"', b'[{"ph": "X"', b"[{"),
        (b'{"ph": "X"', b'null, {"ph": "X"', b"null"),
    ],
)
def test_damage_costs_no_event_before_it_and_its_place_is_said(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    old: bytes,
    new: bytes,
    invalid: bytes,
    operator: int,
    piece_bytes: int,
    packed: bool,
) -> None:
    monkeypatch.setattr(kineto, "PIECE_BYTES", piece_bytes)
    slow_passes: list[int] = []
    walked = kineto_events.decode_one_by_one
    for module in (kineto, kineto_events):
        monkeypatch.setattr(module, "decode_one_by_one", lambda *given: slow_passes.append(1) or walked(*given))
    events = [json.dumps(event, default=float).encode() for event in kineto_files.events(40)]
    at = [number for number, event in enumerate(events) if b"cpu_op" in event][operator]
    before = HEADER.encode() + b",".join(events[:at])
    damaged = events[at].replace(old, new, 1)
    content = before + b"," + b",".join([damaged, *events[at + 1 :]]) + FOOTER.encode()
    path = tmp_path / "damaged.json"
    path.write_bytes(gzip.compress(content) if packed else content)

    trace = kineto.read(path)

    unit = " after decompression" if packed else ""
    at_byte = len(before) + 1 + damaged.index(invalid)
    assert trace.remarks == (f"damaged at byte {at_byte:,}{unit}: read to byte {len(before):,}{unit}",)
    counted = Counter(json.loads(event)["cat"] for event in events[:at])
    assert len(trace.operators) == counted["cpu_op"] == operator
    assert (len(trace.launches), len(trace.ranges)) == (counted["cuda_runtime"], counted["user_annotation"])
    assert len(trace.work) == counted["kernel"] + counted["gpu_memcpy"]
    assert len(slow_passes) == 1  # no search for a boundary that happens to fit


def test_damage_in_the_very_first_event_and_before_it_is_said(tmp_path: Path) -> None:
    path = tmp_path / "head.json"
    path.write_bytes(whole().replace(b'"ph"', b'"ph\xff', 1))
    begin = len(HEADER.encode())
    with pytest.raises(
        LogError, match=f"has no events with a duration: damaged at byte .*: read to byte {begin - 1:,}"
    ):
        kineto.read(path)
    path.write_bytes(whole().replace(b'"world_size": 8}', b'"world_size": 8\xff}'))
    trace = kineto.read(path)
    assert trace.remarks == ("damaged before the events: devices and rank are unknown",)
    assert len(trace.operators) == 40
    assert (trace.devices, trace.rank) == ((), None)


def test_a_trace_within_another_object_is_not_damaged(tmp_path: Path) -> None:
    path = tmp_path / "nested.json"
    path.write_text('{"trace": ' + whole().decode() + "}")
    trace = kineto.read(path)
    assert (len(trace.operators), trace.remarks) == (40, ())


def test_a_file_that_ends_anywhere_is_cut_off_and_not_damaged(tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    odd = rb"""{"ph": "X", "cat": "cpu_op", "name": "\ud83e\uddee \" }, {", "ts": 1.5e0, "dur": -2E-05, "args": {
        "Input Dims": [[], [NaN, -Infinity]], "a": {"b": [true, false, null]}}, "id": [{"x": 1}, {"y": 2}]}"""
    begin, between = b'{"traceEvents": [' + odd, b" ,\n "
    content = begin + between + odd
    for size_bytes in range(len(begin), len(content) + 1):
        path.write_bytes(content[:size_bytes])
        trace = kineto.read(path)
        is_whole = size_bytes == len(content)
        assert trace.remarks == (f"cut off: read to byte {len(content if is_whole else begin):,}",)
        assert len(trace.operators) == 1 + is_whole


def test_damaged_gzip_gives_the_blocks_before_the_damage(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(whole(4000), compresslevel=1))
    packed[len(packed) // 2 : len(packed) // 2 + 64] = b"\xff" * 64
    path = tmp_path / "damaged.json.gz"
    path.write_bytes(packed)
    trace = kineto.read(path)
    text, error = decompressed(bytes(packed))
    at, whole_operators = len(HEADER), 0
    with suppress(ValueError):
        while True:
            event, at = json.JSONDecoder().raw_decode(text, text.index("{", at))
            whole_operators += event["cat"] == "cpu_op"
    assert whole_operators / 2 < len(trace.operators) <= whole_operators
    damaged, cut = trace.remarks  # each said once
    assert damaged == f"the gzip data is damaged: {error}"
    assert cut.startswith("cut off: read to byte ")


def decompressed(packed: bytes) -> tuple[str, str]:
    """What can be decompressed byte by byte, and the error that ends it."""
    unpack, plain = zlib.decompressobj(wbits=31), bytearray()
    try:
        for byte in packed:
            plain += unpack.decompress(bytes([byte]))
    except zlib.error as error:
        return plain.decode(errors="replace"), str(error)
    return plain.decode(), ""


def one(path: Path, **changes: Any) -> bytes:
    """A file of one operator and one kernel, the latter with these changes, as bytes."""
    operator = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 2, "args": {}}
    kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 2, "dur": 3, "args": {"stream": 7}}
    content = json.dumps({"traceEvents": [operator, {**kernel, **changes}]})
    path.write_text(content)
    return content.encode()


def test_numbers_beyond_64_bits_are_not_known_and_the_event_counts(tmp_path: Path) -> None:
    path = tmp_path / "big.json"
    one(path, args={"stream": 2**63, "correlation": 2**70, "addr": 2**200})
    trace = kineto.read(path).whole()
    assert trace.work.duration_ns.tolist() == [3000]
    assert trace.work.stream.tolist() == [NONE]
    assert trace.work.correlation.tolist() == [NONE]
    first, last = json.loads(path.read_text())["traceEvents"]
    path.write_text(json.dumps([{**last, "args": {"stream": 2**63, "correlation": 2**63 - 1}}, first, first]))
    trace = kineto.read(path).whole()
    assert (trace.work.stream.tolist(), trace.work.correlation.tolist()) == ([NONE], [2**63 - 1])


def test_bytes_that_are_no_utf8_cost_no_event(tmp_path: Path) -> None:
    path = tmp_path / "bytes.json"
    path.write_bytes(one(path).replace(b"gemm", b"ge\xff\xfem"))
    trace = kineto.read(path).whole()
    assert trace.names[trace.work.name[0]] == "ge��m"
    assert len(trace.operators.name) == 1


def test_a_damaged_name_costs_no_other_event_its_shapes(tmp_path: Path) -> None:
    path = tmp_path / "bytes.json"
    content = one(path).replace(b"gemm", b"ge\xff\xfem").replace(b'"args": {}', b'"args": {"Input Dims": [[4, 128]]}')
    path.write_bytes(content)
    trace = kineto.read(path).whole()
    assert [trace.names[shapes] for shapes in trace.operators.shapes] == ["[[4, 128]]"]


def test_half_a_character_costs_no_event(tmp_path: Path) -> None:
    path = tmp_path / "half.json"
    path.write_bytes(one(path).replace(b"gemm", b"ge\\ud83dmm"))
    trace = kineto.read(path).whole()
    assert trace.names[trace.work.name[0]] == "ge�mm"
    assert trace.remarks == ()


@pytest.mark.parametrize("time", [b"NaN", b"1e400", b"1e300", b"-1e300", b'"noon"', b"null"])
@pytest.mark.parametrize("key", [b'"ts": 2', b'"dur": 3'])
def test_a_time_that_is_none_costs_its_own_event_alone(tmp_path: Path, key: bytes, time: bytes) -> None:
    path = tmp_path / "never.json"
    path.write_bytes(one(path).replace(key + b",", key[:-1] + time + b",", 1))
    assert (path.read_bytes().count(time), time in path.read_bytes()) == (1, True)
    trace = kineto.read(path).whole()
    assert (len(trace.work.name), len(trace.operators.name)) == (0, 1)


def test_an_event_without_a_duration_is_left_out_and_said(tmp_path: Path) -> None:
    path = tmp_path / "none.json"
    content = json.loads(one(path))
    del content["traceEvents"][1]["dur"]
    path.write_text(json.dumps(content))
    trace = kineto.read(path).whole()
    assert len(trace.work.name) == 0
    assert trace.remarks == ("1 events without a duration were omitted",)


def test_an_event_without_a_time_is_at_the_very_beginning(tmp_path: Path) -> None:
    path = tmp_path / "none.json"
    path.write_bytes(one(path).replace(b'"ts": 1, ', b""))
    trace = kineto.read(path).whole()
    assert (trace.operators.start_ns.tolist(), trace.work.start_ns.tolist()) == ([0], [2000])


def ten_kernels() -> list[dict[str, Any]]:
    """Ten launches, each followed by its kernel of 50 µs."""
    events = []
    for number in range(10):
        place = {"ph": "X", "ts": 100 * number, "dur": 50, "args": {"correlation": number, "stream": 7, "device": 0}}
        events += [{**place, "cat": "cuda_runtime", "name": "launch"}, {**place, "cat": "kernel", "name": "gemm"}]
    return events


@pytest.mark.parametrize(
    "wrong",
    [{"dur": -5}, {"dur": 1e11}, {"ts": -1e11}, {"ts": 1e11}, {"ts": -9e7}, {"ts": -1e11, "dur": 1e11 + 50}],
    ids=["negative", "endless", "a day early", "a day late", "90 s before its launch", "a day early, ends in time"],
)
def test_an_impossible_time_costs_its_own_event_alone_and_is_said(tmp_path: Path, wrong: dict[str, float]) -> None:
    events = ten_kernels()
    events[1] |= wrong
    path = tmp_path / "times.json"
    path.write_text(json.dumps({"traceEvents": events}))
    summary = summarise(kineto.read(path))
    assert summary.device is not None
    assert (sum(summary.spent.calls), summary.busy_ns, summary.device.window_ns) == (9, 450_000, 850_000)
    assert summary.remarks == ["1 events with impossible times were omitted"]


def test_a_call_that_lasts_much_longer_than_all_else_is_possible(tmp_path: Path) -> None:
    call = {"ph": "X", "cat": "cpu_op", "name": "compile", "ts": -2e9, "dur": 2e9 + 5}
    path = tmp_path / "long.json"
    path.write_text(json.dumps({"traceEvents": [*ten_kernels(), call]}))
    trace = kineto.read(path).whole()
    assert (len(trace.operators.name), len(trace.work.name), trace.remarks) == (1, 10, ())


def test_wrong_types_cost_their_own_event_alone(tmp_path: Path) -> None:
    path = tmp_path / "types.json"
    one(path, args={"grid": "large", "stream": "seven"}, dur=5)
    assert kineto.read(path).whole().work.duration_ns.tolist() == [5000]
    one(path, name=["gemm"])
    trace = kineto.read(path).whole()
    assert (len(trace.work.name), len(trace.operators.name)) == (0, 1)


def test_a_trace_of_another_vendor_is_read(tmp_path: Path) -> None:
    path = tmp_path / "amd.json"
    content = one(path, name="Cijk_Ailk_Bljk_SB_MT128x128x16").replace(b'"cpu_op"', b'"hip_runtime"')
    path.write_bytes(content.replace(b"aten::mm", b"hipLaunchKernel"))
    trace = kineto.read(path).whole()
    assert (len(trace.launches.name), len(trace.work.name)) == (1, 1)


@pytest.mark.parametrize(
    ("launch", "category", "device"),
    [
        ("mtia_runtime", "mtia_ccp_events", "MTIA"),
        ("xpu_runtime", "kernel", "XPU"),
        ("privateuse1_driver", "kernel", "PrivateUse1"),
        ("mlu_runtime", "mlu_memcpy", "MLU"),
    ],
)
def test_what_another_device_does_is_its_own_and_not_the_hosts(
    tmp_path: Path, launch: str, category: str, device: str
) -> None:
    path = tmp_path / "device.json"
    path.write_bytes(one(path, cat=category).replace(b'"cpu_op"', f'"{launch}"'.encode()))
    found = kineto.read(path)
    assert (len(found.work), len(found.launches), len(found.operators)) == (1, 1, 0)
    assert found.devices == (device,)
    assert summarise(found).source == "device"


@pytest.mark.parametrize(
    ("header", "device"),
    [
        ('"deviceProperties": [{"id": 0, "name": "H100"}]', "H100"),
        ('"distributedInfo": {"backend": "mtia:hccl"}', "MTIA"),
        ('"deviceProperties": [], "distributedInfo": {"backend": "cpu:gloo,xpu:xccl"}', "XPU"),
    ],
)
def test_a_device_that_has_recorded_nothing_is_named(tmp_path: Path, header: str, device: str) -> None:
    path = tmp_path / "host.json"
    path.write_bytes(one(path, cat="cpu_op").replace(b'{"traceEvents"', f'{{{header}, "traceEvents"'.encode()))
    summary = summarise(kineto.read(path))
    assert (summary.source, summary.devices) == ("cpu", [device])
    remarks = [remark.text for remark in traces_sheet([summary]).remarks]
    assert any(text.endswith(f"the file has no kernels of {device}") for text in remarks)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"{}", "it has no traceEvents"),
        (b'{"traceEvents": []}', "has no events with a duration"),
        ((HEADER + FOOTER).encode(), "has no events with a duration"),
        (b'{"spec": {"kind": "time"}}', "it has no traceEvents"),
        (b"PK\x03\x04", "is not a trace"),
        (b"\x1f\x8b\x08\x00garbage", "trace"),
        (b'{"traceEvents": [{"ph": "X", "cat": "ker', "has no events with a duration: cut off"),
        (b'{"traceEvents": 7}', "it has no traceEvents"),
    ],
)
def test_what_is_no_trace_gets_one_line(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(content)
    with pytest.raises(LogError) as refusal:
        traces.read(path)
    assert said in str(refusal.value)
    assert str(path) in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_file_that_is_not_there_gets_one_line(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="no such file"):
        traces.read(tmp_path / "nowhere.json")
