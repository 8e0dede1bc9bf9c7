"""Snapshots are read as what they are, whoever wrote them, and nothing in them is ever run."""

import gzip
import io
import itertools
import os
import pickle
import pickletools
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sysbench.errors import LogError, OutputError
from sysbench.snapshot import plain_pickle, snapshot
from sysbench.snapshot.layout import ACTIONS, NONE, STATES, Snapshot
from sysbench.snapshot.plain_pickle import UnreadableError
from sysbench.snapshot.snapshot import MAX_SIZE_BYTES, SnapshotCollector
from tests.snapshot.synthetic_snapshots import Model, frame, training_snapshot

SMALL = Model(layers=2, d_model=64, d_ff=128, heads=2, vocab=100, ctx=32)


def read_bytes(content: bytes, budget_bytes: int = 256 << 20) -> Snapshot:
    collector = SnapshotCollector()
    return collector.snapshot(plain_pickle.load(io.BytesIO(content), collector.finish, budget_bytes))


def entries_of(read: Snapshot) -> list[dict[str, Any]]:
    """Trace entries put together again from columns, without what is absent."""
    trace = read.trace
    entries = []
    for row in range(len(trace)):
        action = ACTIONS[trace.action[row]]
        entry: dict[str, Any] = {
            "device": int(trace.device[row]),
            "action": action,
            ("device_free" if action == "oom" else "addr"): int(trace.address[row]),
            "size": int(trace.size_bytes[row]),
            "stream": int(trace.stream[row]),
            "time_us": int(trace.time_us[row]),
            "frames": [found._asdict() for found in read.stacks.of(int(trace.stack[row]))],
        }
        if trace.category[row] != NONE:
            entry["category"] = read.categories[trace.category[row]]
        if trace.label[row] != NONE:
            entry["user_metadata"] = read.labels[trace.label[row]]
        entries.append(entry)
    return entries


def expected_entries(raw: dict[str, Any]) -> list[dict[str, Any]]:
    """The same from the objects that pickle itself makes."""
    kept = ("action", "addr", "device_free", "size", "stream", "time_us", "frames", "category", "user_metadata")
    defaults = {"stream": 0, "time_us": 0, "frames": []}
    return [
        {"device": device, **defaults, **{key: entry[key] for key in kept if entry.get(key) not in (None, "")}}
        for device, trace in enumerate(raw["device_traces"])
        for entry in trace
    ]


def loaded_by_pickle(path: Path) -> Any:
    """What pickle makes of a file that this test has written."""
    return pickle.loads(path.read_bytes())  # noqa: S301


# --- what is read is what is there


def pickled_by_c(raw: Any, protocol: int) -> bytes:
    return pickle.dumps(raw, protocol)


def pickled_by_python(raw: Any, protocol: int) -> bytes:
    stream = io.BytesIO()
    pickle._Pickler(stream, protocol).dump(raw)
    return stream.getvalue()


def optimized(raw: Any, protocol: int) -> bytes:
    return pickletools.optimize(pickle.dumps(raw, protocol))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("pickled", [pickled_by_c, pickled_by_python, optimized])
@pytest.mark.parametrize("described", [True, False])
def test_columns_hold_what_pickle_itself_would_have_loaded(
    protocol: int, pickled: Callable[[Any, int], bytes], described: bool
) -> None:
    raw = training_snapshot(SMALL, steps=2, described=described)
    read = read_bytes(pickled(raw, protocol))
    assert entries_of(read) == expected_entries(raw)
    blocks = [block for segment in raw["segments"] for block in segment["blocks"]]
    assert read.blocks.address.tolist() == [block["address"] for block in blocks]
    assert read.blocks.size_bytes.tolist() == [block["size"] for block in blocks]
    assert read.blocks.requested_bytes.tolist() == [block["requested_size"] for block in blocks]
    assert [STATES[state] for state in read.blocks.state] == [block["state"] for block in blocks]
    assert [list(map(dict, map(_as_dict, read.stacks.of(s)))) for s in read.blocks.stack] == [
        block["frames"] for block in blocks
    ]
    assert read.segments.total_bytes.tolist() == [segment["total_size"] for segment in raw["segments"]]
    assert np.diff(read.segments.first_block).tolist() == [len(segment["blocks"]) for segment in raw["segments"]]
    assert [mark._asdict() for mark in read.annotations] == raw["external_annotations"]
    assert read.source == ("simulated" if described else "measured")


def _as_dict(found: Any) -> dict[str, Any]:
    return dict(found._asdict())


FRAMES = st.lists(
    st.builds(frame, st.sampled_from(["a.py", "/b/c.cpp", "ü.py"]), st.integers(0, 3), st.sampled_from(["f", "g"])),
    max_size=4,
)
ENTRIES = st.fixed_dictionaries(
    {
        "action": st.sampled_from(ACTIONS[1:9]),
        "addr": st.integers(0, 2**63 - 1) | st.integers(0, 300) | st.integers(2**63, 2**64 - 1),
        "size": st.integers(0, MAX_SIZE_BYTES) | st.integers(0, 70_000),
        "stream": st.integers(-(2**63), 2**63 - 1) | st.just(0),
    },
    optional={
        "time_us": st.integers(0, 2**62),
        "frames": FRAMES,
        "category": st.sampled_from(["parameters", "", "x" * 300]),
        "user_metadata": st.text(max_size=120),
        "compile_context": st.sampled_from(["N/A", "0/0"]),
        "pool_id": st.tuples(st.integers(0, 3), st.integers(0, 3)),
        "extra": st.sampled_from([None, True, 1.5, (), [1, 2]]),
    },
)


@given(st.lists(st.lists(ENTRIES, max_size=20), max_size=3), st.sampled_from([2, 4, 5]))
@settings(max_examples=100, deadline=None)
def test_any_mixture_of_entries_is_read_as_pickle_would(traces: list[list[dict[str, Any]]], protocol: int) -> None:
    raw = {"segments": [], "device_traces": traces}
    assert entries_of(read_bytes(pickle.dumps(raw, protocol))) == expected_entries(raw)


def test_rows_come_out_the_same_when_every_value_changes_its_form_from_row_to_row() -> None:
    sizes = [1, 255, 256, 65535, 65536, 2**31 - 1, 2**31, 2**40]
    shared = [frame("m.py", line, "f") for line in range(400)]
    stacks = [shared[:1], shared[1:300], [], list(reversed(shared)), shared[5:6]]
    trace = [
        {
            "action": action,
            "addr": size * 1_000_003,
            "size": size,
            "stream": 0,
            "frames": list(stack) if copy else stack,
            "user_metadata": name if copy else "same",
        }
        for action, size, stack, copy, name in itertools.product(
            ("alloc", "free_completed"), sizes, stacks, (True, False), ("layers.3.attn", "x" * 200, "")
        )
    ]
    raw = {"segments": [], "device_traces": [[], trace * 3]}
    # Three times the same dict is one dict referred to three times; each entry must be its own.
    raw["device_traces"][1] = [dict(entry) for entry in raw["device_traces"][1]]
    assert entries_of(read_bytes(pickle.dumps(raw, 4))) == expected_entries(raw)


def test_stacks_of_a_thousand_frames_and_more_are_read_whole() -> None:
    def deep(depth: int) -> list[dict[str, Any]]:
        return [frame("r.py", line % 7, "recurse") for line in range(depth)]

    trace = [
        {"action": "alloc", "addr": i, "size": 8, "stream": 0, "frames": deep(depth)}
        for i, depth in enumerate((999, 1000, 1001, 2000, 2001, 1000, 1001))
    ]
    raw = {"segments": [], "device_traces": [trace]}
    assert entries_of(read_bytes(pickle.dumps(raw, 4))) == expected_entries(raw)


@pytest.mark.parametrize("chunk_bytes", [1, 7, 300, 5000])
@pytest.mark.parametrize("protocol", [2, 4])
def test_a_file_is_read_the_same_wherever_its_windows_end(
    chunk_bytes: int, protocol: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain_pickle, "CHUNK_BYTES", chunk_bytes)
    long = frame("/a/path/" + "x" * 300, 1, "name" * 50)
    stacks = [[long, frame("b.py", line, "f"), long] for line in range(300)]
    trace = [
        {"action": action, "addr": i, "size": 512, "stream": 0, "frames": list(stacks[i % len(stacks)])}
        for i in range(700)
        for action in ("alloc", "free_requested")
    ]
    raw = {"segments": [], "device_traces": [[], trace, trace[:0]]}
    assert entries_of(read_bytes(pickle.dumps(raw, protocol))) == expected_entries(raw)


def test_an_out_of_memory_entry_keeps_what_the_device_had_left() -> None:
    trace = [{"action": "oom", "device_free": 12345, "size": 1 << 40, "stream": 0, "frames": []}]
    read = snapshot.of({"segments": [], "device_traces": [trace]})
    assert ACTIONS[read.trace.action[0]] == "oom"
    assert (read.trace.address[0], read.trace.size_bytes[0]) == (12345, 1 << 40)


# --- layouts of other years


def legacy_segment(**more: Any) -> dict[str, Any]:
    block = {"size": 512, "state": "active_allocated"}
    return {
        "device": 0,
        "address": 4096,
        "total_size": 2048,
        "allocated_size": 1024,
        "active_size": 1024,
        "stream": 0,
        "segment_type": "small",
        "blocks": [
            block | {"history": [{"addr": 4096, "real_size": 300, "frames": [frame("old.py", 1, "f")]}]},
            {"size": 1024, "state": "inactive"},
            block,
        ],
        **more,
    }


def test_a_bare_list_of_segments_is_a_snapshot() -> None:
    read = read_bytes(pickle.dumps([legacy_segment()]))
    assert len(read.trace) == 0
    assert read.segments.address.tolist() == [4096]


def test_blocks_without_addresses_fill_their_segment() -> None:
    read = snapshot.of({"segments": [legacy_segment(), legacy_segment(address=1 << 40)]})
    assert read.blocks.address.tolist() == [4096, 4608, 5632, 2**40, 2**40 + 512, 2**40 + 1536]


def test_history_of_2022_stands_for_frames_and_requested_size() -> None:
    read = snapshot.of([legacy_segment()])
    assert read.blocks.requested_bytes.tolist() == [300, 1024, 512]
    assert [found.filename for found in read.stacks.of(int(read.blocks.stack[0]))] == ["old.py"]


def test_a_snapshot_without_traces_or_settings_is_read() -> None:
    read = snapshot.of({"segments": [legacy_segment()]})
    assert (len(read.trace), dict(read.settings), read.annotations, read.devices) == (0, {}, (), (0,))


@pytest.mark.parametrize("wrong", [{"name": 3}, {"stage": None}, {"time_us": "late"}, {"device": "cuda"}])
def test_an_annotation_that_is_none_is_passed_over(wrong: dict[str, object]) -> None:
    mark = {"name": "forward", "stage": "START", "time_us": 7, "device": 0}
    read = snapshot.of({"segments": [legacy_segment()], "external_annotations": [{**mark, **wrong}, mark]})
    assert [each._asdict() for each in read.annotations] == [mark]


@pytest.mark.parametrize("name", ["active_pending_free", "active_awaiting_free"])
def test_both_names_of_a_pending_block_are_one_state(name: str) -> None:
    segment = legacy_segment(blocks=[{"size": 2048, "state": name}])
    assert STATES[snapshot.of([segment]).blocks.state[0]] == "active_pending_free"


def test_what_the_cpu_profiler_makes_into_a_snapshot_is_read(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from torch.cuda import _memory_viz

    with torch.profiler.profile(profile_memory=True, with_stack=True, record_shapes=True) as profile:
        model = torch.nn.Linear(32, 32)
        model(torch.ones(8, 32)).sum().backward()
    raw = _memory_viz._profile_to_snapshot(profile)
    path = tmp_path / "cpu.pickle"
    path.write_bytes(pickle.dumps(raw))
    read = snapshot.read(path)
    assert len(read.trace) == sum(map(len, raw["device_traces"])) > 0
    assert read.segments.total_bytes.tolist() == [segment["total_size"] for segment in raw["segments"]]
    assert "gradient" in read.categories


# --- files that are not to be trusted


class Reduces:
    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> Any:
        return self.call


def test_a_hostile_file_runs_nothing_and_is_named(tmp_path: Path) -> None:
    marker = tmp_path / "was-run"
    commands: list[Any] = [
        Reduces(os.system, (f"touch {marker}",)),
        {"segments": [Reduces(eval, (f"open({str(marker)!r}, 'w')",))], "device_traces": []},
        {"segments": [], "device_traces": [[{"action": Reduces(Path.touch, (marker,))}]]},
    ]
    for protocol, command in itertools.product((2, 3, 4, 5), commands):
        path = tmp_path / "hostile.pickle"
        path.write_bytes(pickle.dumps(command, protocol))
        with pytest.raises(LogError, match=r"hostile.pickle is refused: it (refers to|asks to run)") as refusal:
            snapshot.read(path)
        assert "\n" not in str(refusal.value)
    assert not marker.exists()


HOSTILE = {
    "an import of protocol 0": b"\x80\x02cos\nsystem\n(S'true'\ntR.",
    "an instance": b"\x80\x02(S'true'\nios\nsystem\n.",
    "a persistent id": b"\x80\x04\x8c\x01xQ.",
    "an extension": b"\x80\x02\x82\x01.",
    "an out-of-band buffer": b"\x80\x05\x97.",
    "a set": b"\x80\x04\x8f.",
    "a bytearray": b"\x80\x05\x96\x01\0\0\0\0\0\0\0x.",
    "a text of 4 GB": b"\x80\x04X\xff\xff\xff\xffx.",
    "a text of 2^62 bytes": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 62) + b"x.",
    "bytes of 2^62": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 62) + b"x.",
    "a number of 2 GB": b"\x80\x02\x8b\xff\xff\xff\x7fx.",
    "a number of 255 bytes": b"\x80\x02\x8a\xff" + b"x" * 255 + b".",
    "a memo slot far out": b"\x80\x02]r\xff\xff\xff\xff.",
    "a memo slot that was never filled": b"\x80\x04]j\xff\xff\xff\xffa.",
    "a memo slot skipped": b"\x80\x02]q\x01h\x00a.",
    "a tuple of tuples of tuples": b"\x80\x04}K\x01\x85" + b"\x94h\x00\x86" * 60 + b"K\x01s.",
    "copies of what is on the stack": b"\x80\x04]2\x86.",
    "nesting": b"\x80\x04" + b"(" * 5000 + b".",
    "lists in lists": b"\x80\x04" + b"]" * 100_000 + b"a" * 99_999 + b".",
    "appending to a number": b"\x80\x04K\x01K\x02a.",
    "filling a list as a dict": b"\x80\x04](K\x01K\x02u.",
    "a key that is a list": b"\x80\x04}]K\x01s.",
    "half a pair": b"\x80\x04}(K\x01u.",
    "an empty stack": b"\x80\x04a.",
    "no mark": b"\x80\x04e.",
    "nothing at all": b"\x80\x04.",
    "two objects": b"\x80\x04]].",
    "one container stored twice": b"\x80\x04}\x94\x94.",
    "a protocol to come": b"\x80\x09].",
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=list(HOSTILE))
def test_opcodes_that_no_snapshot_has_get_one_clear_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(content)
    with pytest.raises(LogError) as refusal:
        snapshot.read(path)
    assert str(refusal.value).startswith(str(path))
    assert "\n" not in str(refusal.value)


BOMBS = {
    "lists": b"]",
    "dicts": b"}",
    "memo": b"N" + b"\x94" * 7,
    "kept dicts": b"}\x94(K\x01K\x02u",
    "texts": b"\x8c\x01x\x94",
    "entries": b"}(\x8c\x06action\x8c\x05allocu",
    "traces": b"]}\x8c\x06action\x8c\x05allocsa",
}


READ_BOMB = """
import resource, sys
from pathlib import Path
from sysbench.snapshot import plain_pickle, snapshot
from sysbench.errors import LogError

def peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

# The budget is asked for once a window; with small windows the test is quick.
plain_pickle.CHUNK_BYTES = 1 << 15
before_bytes = peak_bytes()
try:
    snapshot.read(Path(sys.argv[1]), budget_bytes=int(sys.argv[2]))
except LogError as refusal:
    print(refusal)
print(peak_bytes() - before_bytes)
"""


@pytest.mark.parametrize("unit", BOMBS.values(), ids=list(BOMBS))
def test_a_small_file_that_unpacks_into_a_huge_one_stops_at_the_budget(tmp_path: Path, unit: bytes) -> None:
    budget = 4 << 20
    path = tmp_path / "bomb.pickle.gz"
    repeated = unit * (1 << 16)
    with gzip.open(path, "wb", compresslevel=1) as packed:
        packed.write(b"\x80\x04(")
        for _ in range(max(1, (16 << 20) // len(repeated))):
            packed.write(repeated)
    # In a process of its own: one that has memory to spare from earlier does not grow at first.
    command = [sys.executable, "-c", READ_BOMB, str(path), str(budget)]
    refusal, grown_bytes = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    assert "needs more than 4 MiB of memory" in refusal
    assert int(grown_bytes) < 4 * budget


def test_every_truncation_of_a_snapshot_is_recognised(tmp_path: Path) -> None:
    content = pickle.dumps(training_snapshot(Model(layers=1, d_model=8, d_ff=8, heads=1, vocab=8, ctx=8)), 4)
    for length in [*range(40), *range(40, len(content), 97), len(content) - 1]:
        with pytest.raises(UnreadableError):
            read_bytes(content[:length])


def test_a_truncated_gzip_file_is_recognised(tmp_path: Path) -> None:
    content = gzip.compress(pickle.dumps(training_snapshot(SMALL)))
    path = tmp_path / "cut.pickle.gz"
    for length in (3, 12, len(content) // 2, len(content) - 3):
        path.write_bytes(content[:length])
        with pytest.raises(LogError, match="truncated"):
            snapshot.read(path)


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_a_damaged_file_is_read_or_refused_and_nothing_else(data: st.DataObject) -> None:
    content = bytearray(pickle.dumps(training_snapshot(Model(1, 8, 8, 1, 8, 1, 8)), data.draw(st.sampled_from([2, 4]))))
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with suppress(UnreadableError):
        entries_of(read_bytes(bytes(content)))


@given(st.binary(max_size=200))
@settings(max_examples=100, deadline=None)
def test_noise_is_refused(noise: bytes) -> None:
    with pytest.raises(UnreadableError):
        read_bytes(b"\x80\x04" + noise)


def test_gzipped_snapshots_are_read(tmp_path: Path) -> None:
    raw = training_snapshot(SMALL)
    path = tmp_path / "snapshot.pickle.gz"
    path.write_bytes(gzip.compress(pickle.dumps(raw)))
    assert entries_of(snapshot.read(path)) == expected_entries(raw)


FOREIGN = {
    "is empty": b"",
    "zip archive": b"PK\x03\x04rest",
    "JSON": b'{"traceEvents": []}',
    "SQLite": b"SQLite format 3\0",
    "not a pickle": b"hello, world",
    "contains a list of 3": pickle.dumps([1, 2, 3]),
    "contains an empty list": pickle.dumps([]),
    "contains a dict with epoch, loss": pickle.dumps({"epoch": 3, "loss": 0.5}),
    "contains a value of type int": pickle.dumps(7),
    "numpy": pickle.dumps(np.arange(3)),
    "device_traces are not lists": pickle.dumps({"segments": [], "device_traces": [1]}),
    "a trace entry where a segment was expected": pickle.dumps(
        {"segments": [{"action": "alloc", "addr": 1, "size": 1}]}
    ),
    "a trace entry in the wrong place": pickle.dumps(
        {"segments": [], "x": [{"action": "alloc", "addr": 1, "size": 1}]}
    ),
    "blocks outside": pickle.dumps({"segments": [], "x": [{"size": 1, "state": "inactive"}]}),
    "'many' is not an integer": pickle.dumps(
        {"segments": [], "device_traces": [[{"action": "alloc", "addr": 1, "size": "many"}]]}
    ),
    "the frames are malformed": pickle.dumps(
        {"segments": [], "device_traces": [[{"action": "alloc", "addr": 1, "frames": [frame("a.py", 1, "f"), (1, 2)]}]]}
    ),
    "a size is -1 bytes": pickle.dumps(
        {"segments": [], "device_traces": [[{"action": "alloc", "addr": 1, "size": -1}]]}
    ),
    "in a segment, a size is -2 bytes": pickle.dumps(
        {"segments": [{"address": 1, "total_size": -2, "blocks": []}], "device_traces": []}
    ),
    "a size is 9223372036854775807 bytes": pickle.dumps(
        {"segments": [], "device_traces": [[{"action": "alloc", "addr": 1, "size": 2**63 - 1}]]}
    ),
    "its roundup_power2_divisions are {'1': 'x'}": pickle.dumps(
        {
            "segments": [],
            "device_traces": [],
            "allocator_settings": {"roundup_power2_divisions": {"1": "x"}},
        }
    ),
}


@pytest.mark.parametrize(("line", "content"), FOREIGN.items(), ids=list(FOREIGN))
def test_a_foreign_file_is_called_by_its_name(tmp_path: Path, line: str, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(LogError, match=line) as refusal:
        snapshot.read(path)
    assert "\n" not in str(refusal.value)
    assert refusal.value.exit_code == 2


def test_a_directory_and_a_missing_file_are_called_by_their_names(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="is a directory"):
        snapshot.read(tmp_path)
    with pytest.raises(LogError, match=r"cannot read .*gone: no such file"):
        snapshot.read(tmp_path / "gone")


def test_reading_keeps_columns_and_not_the_objects(tmp_path: Path) -> None:
    """Stacks of their own for every entry, which is how files grow: memory must not grow with them."""
    shared = [frame("deep.py", line, "call") for line in range(200)]
    trace = [
        {"action": "alloc", "addr": i << 9, "size": 512, "stream": 0, "frames": list(shared[i % 50 :])}
        for i in range(25_000)
    ]
    path = tmp_path / "large.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [trace]}, 4))
    assert path.stat().st_size > 8 << 20
    del trace
    tracemalloc.start()
    try:
        read = snapshot.read(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(read.trace) == 25_000
    assert len(read.stacks) == 50
    assert peak < path.stat().st_size


# --- writing

VIEWER_OPCODES = """
APPENDS BINGET BININT BININT1 BININT2 EMPTY_DICT EMPTY_LIST FRAME LONG1 LONG_BINGET MARK MEMOIZE PROTO SETITEMS
SHORT_BINUNICODE STOP TUPLE2 APPEND NEWFALSE BINPUT BINUNICODE EMPTY_TUPLE NEWTRUE NONE BINFLOAT TUPLE TUPLE1 TUPLE3
LONG_BINPUT LIST DICT SETITEM
"""
"""What `unpickle` in torch/utils/viz/MemoryViz.js knows."""


def test_the_public_viewers_unpickler_knows_every_opcode_that_is_written(tmp_path: Path) -> None:
    path = tmp_path / "out.pickle"
    snapshot.write(path, training_snapshot(SMALL, steps=2))
    opcodes = {opcode.name for opcode, _, _ in pickletools.genops(path.read_bytes())}
    assert opcodes <= set(VIEWER_OPCODES.split())
    assert path.read_bytes()[:2] == b"\x80\x04"


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    raw = training_snapshot(SMALL, described=False)
    path = tmp_path / "out.pickle"
    snapshot.write(path, raw)
    assert loaded_by_pickle(path) == raw
    assert entries_of(snapshot.read(path)) == expected_entries(raw)


def test_categories_always_include_unknown_which_the_viewer_fails_to_add(tmp_path: Path) -> None:
    path = tmp_path / "out.pickle"
    raw = training_snapshot(SMALL)
    before = len(raw["device_traces"][0])
    snapshot.write(path, raw)
    loaded = loaded_by_pickle(path)
    assert "unknown" in {entry.get("category") for entry in loaded["device_traces"][0]}
    assert loaded["device_traces"][0][:before] == raw["device_traces"][0]
    assert len(raw["device_traces"][0]) == before


def test_a_place_that_cannot_be_written_gets_one_line(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot write"):
        snapshot.write(tmp_path / "no" / "such" / "out.pickle", training_snapshot(SMALL))


def test_torchs_own_viewer_functions_read_what_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    from torch.cuda import _memory_viz

    raw = training_snapshot(SMALL, steps=2)
    path = tmp_path / "out.pickle"
    snapshot.write(path, raw)
    loaded = loaded_by_pickle(path)
    read = snapshot.read(path)

    reserved = f"total_reserved: {_memory_viz.Bytes(int(read.segments.total_bytes.sum()))}"
    assert reserved in _memory_viz.segsum(loaded)
    assert _memory_viz.segsum(loaded) == _memory_viz.segsum(raw)
    told = _memory_viz.trace(loaded)
    assert told.count(" = seg_") + told.count(" = a[") + told.count("[") >= int((read.trace.action == 1).sum())
    flames = _memory_viz.memory(loaded, format_flamegraph=lambda lines: lines)
    live = read.blocks.requested_bytes[read.blocks.state == STATES.index("active_allocated")].sum()
    named = [line for line in flames.splitlines() if ";active_allocated;" in line and "<gaps>" not in line]
    assert sum(int(line.rsplit(" ", 1)[1]) for line in named) == live
    assert "train.py" in _memory_viz.segments(loaded, format_flamegraph=lambda lines: lines)
    empty: list[Any] = []
    assert "only_after" in _memory_viz.compare(empty, loaded["segments"], format_flamegraph=lambda lines: lines)
    assert "only_before = []" in capsys.readouterr().out
    assert "Active Memory Timeline" in _memory_viz.trace_plot(loaded)
    assert "Allocator State History" in _memory_viz.segment_plot(loaded)
