"""Whatever way a file of torch.profiler is written, its numbers are those of Python's own reader."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sysbench.errors import LogError
from sysbench.trace.readers import kineto
from sysbench.trace.readers.kineto_columns import Columns
from sysbench.trace.recording import COPY, KERNEL, NONE, SET, Trace
from tests.trace import kineto_files

ROOMS = {
    "kernel": "work",
    "gpu_memcpy": "work",
    "gpu_memset": "work",
    "cuda_runtime": "launches",
    "cuda_driver": "launches",
    "cpu_op": "operators",
    "user_annotation": "ranges",
}
KINDS = {"kernel": KERNEL, "gpu_memcpy": COPY, "gpu_memset": SET}

spaces = st.sampled_from(["", " ", "\n", "\r\n\t ", "  "])
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["aten::mm", "}, {", '"}],', "\\", "\x00\n", "ядро", "🧮", '{"ph": "X"}']
)
whole_numbers = st.integers(0, 5) | st.integers(-(2**31), 2**31) | st.sampled_from([2**63 - 1, 2**63, 2**64, -(2**70)])
anything = st.recursive(
    st.none() | st.booleans() | whole_numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
triples = st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 2)).map(list)
NUMBERS = ("device", "stream", "correlation", "bytes", "Sequence number")
arguments = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(NUMBERS, whole_numbers | st.none()),
        "grid": triples,
        "block": triples,
        "Input Dims": st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=3),
        "Ev Idx": anything,
        "External id": anything,
    },
)


def times(most: int) -> st.SearchStrategy[Decimal]:
    """Microseconds with up to three decimals, or none at all."""
    return st.integers(0, most).map(lambda ns: Decimal(ns) / 1000) | st.integers(0, most // 1000).map(Decimal)


@st.composite
def events(draw: st.DrawFn) -> list[dict[str, Any]]:
    start_us = draw(st.sampled_from([Decimal(0), Decimal("7024892345.123"), Decimal("1712275200123456.789")]))
    event = st.fixed_dictionaries(
        {"ph": st.sampled_from(["X", "X", "X", "X", "i", "s"]), "ts": times(10**9).map(lambda time: start_us + time)},
        optional={
            "cat": st.sampled_from([*ROOMS, *ROOMS, "python_function", "ac2g"]),
            "dur": times(10**10) | times(10**6),
            "name": texts,
            "pid": st.integers(0, 2) | st.just("Spans"),
            "tid": st.integers(0, 3) | st.just("stream 7"),
            "args": arguments,
            "id": anything,
        },
    )
    found = draw(st.lists(event, min_size=1, max_size=12))
    return [dict(draw(st.permutations([*each.items()]))) for each in found]


def written(draw: st.DrawFn, value: Any) -> str:
    """JSON, with any white space, and any character as an escape or as it is."""
    before, after = draw(spaces), draw(spaces)
    if isinstance(value, dict):
        inner = ",".join(f"{written(draw, key)}:{written(draw, each)}" for key, each in value.items())
        return f"{before}{{{inner}{after}}}{after}"
    if isinstance(value, list):
        return f"{before}[{','.join(written(draw, each) for each in value)}{after}]{after}"
    if isinstance(value, Decimal):
        return f"{before}{value}{after}"
    return f"{before}{json.dumps(value, ensure_ascii=draw(st.booleans()))}{after}"


@st.composite
def files(draw: st.DrawFn) -> str:
    every = written(draw, draw(events()))
    if draw(st.booleans()):
        return every
    return f'{{"schemaVersion": 1,{draw(spaces)}"traceEvents":{every.lstrip()},{draw(spaces)}"traceName": "a"}}'


def known(value: Any) -> int:
    return value if isinstance(value, int) and abs(value) < 2**63 else NONE


def expected(text: str) -> dict[str, list[tuple[Any, ...]]]:
    """By room, in order: name, exact start and duration, and what else is kept, or None for a file without any."""
    content = json.loads(text, parse_float=Decimal)
    rows: dict[str, list[tuple[Any, ...]]] = {room: [] for room in ROOMS.values()}
    for event in content if isinstance(content, list) else content["traceEvents"]:
        category = event.get("cat")
        if event["ph"] != "X" or category not in ROOMS or "dur" not in event:
            continue
        args = event.get("args", {})
        room = ROOMS[category]
        head = (event.get("name", ""), int(Decimal(event["ts"]) * 1000), int(Decimal(event["dur"]) * 1000))
        rows[room].append((*head, *_rest(room, event, args)))
    return rows


def _rest(room: str, event: dict[str, Any], args: dict[str, Any]) -> tuple[Any, ...]:
    thread = (event.get("pid", 0), event.get("tid", 0))
    if room == "work":
        shape = [*args["grid"], *args["block"]] if "grid" in args and "block" in args else None
        return KINDS[event["cat"]], *(known(args.get(each)) for each in NUMBERS[:4]), shape
    if room == "launches":
        return thread, known(args.get("correlation"))
    return (thread, known(args.get("Sequence number")), args.get("Input Dims")) if room == "operators" else (thread,)


def read(trace: Trace, threads: Sequence[tuple[Any, Any]]) -> dict[str, list[tuple[Any, ...]]]:
    """The same of a trace; `threads` in the order in which they stand for its numbers."""
    work, launches, operators, ranges = trace.work, trace.launches, trace.operators, trace.ranges

    def head(part: Any) -> list[tuple[Any, ...]]:
        start = (part.start_ns + trace.origin_ns).tolist()
        return list(zip((trace.names[each] for each in part.name), start, part.duration_ns.tolist(), strict=True))

    def joined(part: Any, *columns: Sequence[Any]) -> list[tuple[Any, ...]]:
        return [(*first, *rest) for first, *rest in zip(head(part), *columns, strict=True)]

    def of(part: Any) -> list[tuple[Any, Any]]:
        return [threads[each] for each in part.thread]

    shapes = [None if each == NONE else json.loads(trace.names[each]) for each in operators.shapes]
    grids = [None if each == NONE else trace.launch_shapes[each].tolist() for each in work.launch_shape]
    columns = (work.kind, work.device, work.stream, work.correlation, work.bytes)
    return {
        "work": joined(work, *(column.tolist() for column in columns), grids),
        "launches": joined(launches, of(launches), launches.correlation.tolist()),
        "operators": joined(operators, of(operators), operators.sequence.tolist(), shapes),
        "ranges": joined(ranges, of(ranges)),
    }


def same(path: Path, text: str) -> None:
    wanted = expected(text)
    if not any(wanted.values()):
        with pytest.raises(LogError):
            kineto.read(path)
        return
    trace = kineto.read(path).whole()
    # Threads are numbers of their own: whatever they are, the same must stand for the same.
    pairs = {
        (number, row[3])
        for room in ("launches", "operators", "ranges")
        for number, row in zip(getattr(trace, room).thread.tolist(), wanted[room], strict=True)
    }
    assert len({number for number, _ in pairs}) == len({thread for _, thread in pairs}) == len(pairs)
    assert read(trace, dict(pairs)) == wanted  # type: ignore[arg-type]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(text=files(), piece_bytes=st.integers(1, 400) | st.just(4 * 1024**2), packed=st.booleans())
def test_every_number_is_that_of_a_slow_reader_however_it_is_written(
    tmp_path_factory: pytest.TempPathFactory, text: str, piece_bytes: int, packed: bool
) -> None:
    path = tmp_path_factory.mktemp("any") / "trace.json"
    content = text.encode()
    path.write_bytes(gzip.compress(content, compresslevel=1) if packed else content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kineto, "PIECE_BYTES", piece_bytes)
        same(path, text)


def small_file(name: str = " \u00e4 }, {") -> str:
    every = [*kineto_files.events(1)]
    return "".join(kineto_files.text([{**each, "name": f"{each['name']}{name}"} for each in every]))


def test_a_piece_may_end_at_any_byte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, text = tmp_path / "trace.json", small_file()
    path.write_text(text, encoding="utf-8")
    size_bytes = len(text.encode())
    for piece_bytes in (*range(1, 200), *range(200, size_bytes, 11), size_bytes):
        monkeypatch.setattr(kineto, "PIECE_BYTES", piece_bytes)
        same(path, text)


def test_a_part_begins_with_an_event_wherever_it_is_looked_for(tmp_path: Path) -> None:
    path, text = tmp_path / "trace.json", small_file("")
    path.write_text(text)
    begin = text.index("[\n  {")
    ends = [at + 1 for at in range(begin, len(text)) if text[at : at + 3] == "},\n"]
    with path.open("rb") as file:
        for near in range(begin, ends[-2]):
            # What is looked for needs another event behind it to be believed.
            end = min(each for each in ends if each > near)
            assert kineto.boundary(file, near) == (end, end + 1)


def test_no_part_begins_within_an_event(tmp_path: Path) -> None:
    path = tmp_path / "nested.json"
    notes = '[{}, {"a": 1}, {"b": 2}]'
    events = [f'{{"ph": "X", "notes": {notes}}}', '{"ph": "X", "id": 1}', '{"ph": "X", "id": 2}']
    path.write_text("[" + ",".join(events) + "]")
    with path.open("rb") as file:
        assert kineto.boundary(file, 1) == (1 + len(events[0]), 2 + len(events[0]))


def test_a_part_may_end_with_an_event_only(tmp_path: Path) -> None:
    path, content = tmp_path / "trace.json", small_file().encode()
    path.write_bytes(content)
    begin = content.index(b"[\n  {") + 1
    for end in range(begin, len(content)):
        with path.open("rb") as file:
            pieces = kineto.Pieces(kineto.Blocks(file, begin, end), Columns())
            assert pieces.process_part() == is_list(content[begin:end])


def is_list(text: bytes) -> bool:
    try:
        json.loads(b"[" + text.strip().removesuffix(b",") + b"]")
    except ValueError:
        return False
    return True
