"""What a log promises: every line that is in it can be read back, and what cannot be read is said in one line."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sysbench import __version__
from sysbench.command import kinds
from sysbench.commands.time.spec import TimeSpec
from sysbench.errors import LogError, OutputError, UsageError
from sysbench.log import runs
from sysbench.log.events import EVENTS, CellFinished, Event, LineDamaged, Reading, RunFinished, RunStarted, encode
from sysbench.log.journal import Log, damaged_lines, read
from sysbench.log.kinds import command_of
from sysbench.log.outcomes import LASTING
from sysbench.log.resume import read_earlier_run
from tests.hosts import MADE_UP as HOST
from tests.unprivileged import permissions_obeyed


def beginning() -> RunStarted:
    return RunStarted(
        at_s=1.5,
        kind="time",
        sysbench_version=__version__,
        source_digest="0" * 64,
        spec=TimeSpec().model_dump(mode="json"),
        host=HOST,
        driver=None,
        cells=4,
    )


def reading(at_s: float = 2.0) -> Reading:
    return Reading(at_s=at_s, host_rss_bytes=3, throttle_reasons=["sw_power_cap"])


def finished() -> CellFinished:
    return CellFinished(at_s=3.0, cell="abc", outcome="oom", detail="a line\nand another")


def written(directory: Path, *events: Event) -> Path:
    with Log.create(directory, "time") as log:
        for event in events:
            log.append(event)
    return log.path


def test_what_was_appended_is_read_back(tmp_path: Path) -> None:
    events: list[Event] = [beginning(), reading(), finished(), RunFinished(at_s=4.0, status="complete")]
    assert list(read(written(tmp_path, *events))) == events


def test_damage_far_into_a_log_is_named_by_its_line_after_all_events_before_it(tmp_path: Path) -> None:
    path = written(tmp_path, beginning(), *(reading(at_s) for at_s in range(1_000)))
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:700], lines[700].replace(b'"at_s":699.0', b'"at_s":-1.0'), *lines[701:]]))
    *before, damaged = islice(read(path), 701)
    assert before == [beginning(), *(reading(at_s) for at_s in range(699))]
    assert isinstance(damaged, LineDamaged)
    assert damaged.detail.startswith("line 701 of the log is damaged: at_s")


def test_lines_that_are_events_only_together_are_damaged(tmp_path: Path) -> None:
    path = written(tmp_path, beginning())
    whole = [encode(reading(at_s)) for at_s in (2.0, 3.0, 4.0)]
    head, tail = whole[2].split(b",", 1)
    for lines, number in (
        ([whole[0] + b"," + whole[1], head, tail], 2),  # as many events as lines, but in other places
        ([whole[0], whole[1] + b",null," + whole[2]], 3),
        ([whole[0], b"null"], 3),
        ([whole[0], head + b',"deep":' + b"[" * 100_000], 3),
    ):
        damaged = path.with_name("damaged.jsonl")
        damaged.write_bytes(path.read_bytes() + b"\n".join(lines) + b"\n")
        told = next(event for event in read(damaged) if isinstance(event, LineDamaged))
        assert told.line == number


def test_a_log_is_named_by_the_time_in_utc(tmp_path: Path) -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d-time\.jsonl", written(tmp_path, beginning()).name)


def test_two_runs_in_one_second_have_a_log_each(tmp_path: Path) -> None:
    paths = [written(tmp_path, beginning(), reading(at_s)) for at_s in (1.0, 2.0, 3.0)]
    assert len(set(paths)) == 3
    assert [list(read(path))[1].at_s for path in paths] == [1.0, 2.0, 3.0]


def test_the_directory_is_created_with_its_parents(tmp_path: Path) -> None:
    assert written(tmp_path / "a" / "b", beginning()).parent == tmp_path / "a" / "b"


def test_an_event_is_on_file_as_soon_as_it_is_appended(tmp_path: Path) -> None:
    with Log.create(tmp_path, "time") as log:
        log.append(beginning())
        log.append(reading())
        assert list(read(log.path)) == [beginning(), reading()]


def test_verdicts_are_forced_to_disk_and_readings_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr("os.fsync", synced.append)
    counts = []
    with Log.create(tmp_path, "time") as log:
        synced.clear()
        for event in (beginning(), reading(), finished(), reading(), RunFinished(at_s=4.0, status="complete")):
            log.append(event)
            counts.append(len(synced))
    assert counts == [1, 1, 2, 2, 3]


def test_a_log_without_events_leaves_no_file(tmp_path: Path) -> None:
    Log.create(tmp_path, "time").close()
    assert list(tmp_path.iterdir()) == []


# Torn, foreign and damaged files


@given(cut=st.integers(min_value=1))
def test_a_torn_last_line_is_ignored_wherever_it_was_torn(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    path = tmp_path_factory.mktemp("torn") / "log.jsonl"
    torn = encode(finished()) + b"\n"
    path.write_bytes(encode(beginning()) + b"\n" + torn[: -1 - cut % (len(torn) - 1)])
    assert list(read(path)) == [beginning()]


def test_a_torn_line_is_cut_before_a_log_is_continued(tmp_path: Path) -> None:
    path = written(tmp_path, beginning(), reading())
    with path.open("ab") as file:
        file.write(b"\0" * 200_000 + encode(finished())[:20])
    with Log.reopen(path) as log:
        log.truncate_partial_line()
        log.append(finished())
    assert list(read(path)) == [beginning(), reading(), finished()]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "{path} is empty"),
        (b"\x89PNG\r\n\x1a\n\0\0", "{path} is not a sysbench log"),
        (b"[" * 100_000, "{path} is not a sysbench log"),
        (b'{"event": "reading", "at_s": 1}\n', "{path} is not a sysbench log"),
        (
            b'{"event": "run_started", "schema_version": 99, "sysbench_version": "7.1", "novel": true}\n',
            "{path} has schema 99 and was written by sysbench 7.1; this version reads schema 1",
        ),
        (encode(beginning()) + b'\n{"event": "read', None),
    ],
)
def test_a_file_that_is_not_a_whole_log_is_told_in_one_line(
    tmp_path: Path, content: bytes, message: str | None
) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(content)
    if message is None:
        assert list(read(path)) == [beginning()]
        return
    with pytest.raises(LogError) as caught:
        list(read(path))
    assert str(caught.value) == message.format(path=path)


@pytest.mark.parametrize(
    ("damaged", "detail"),
    [
        (b"garbage", ""),
        (b'{"event": "read', ""),
        (b'{"event": "dance", "at_s": 1}', ""),
        (encode(reading()) + b"," + encode(reading()), ": at top level: trailing characters"),
    ],
)
def test_of_a_damaged_log_everything_else_can_be_had_and_the_line_is_named(
    tmp_path: Path, damaged: bytes, detail: str
) -> None:
    path = written(tmp_path, beginning(), reading())
    with path.open("ab") as file:
        file.write(damaged + b"\n" + encode(reading()) + b"\n" + encode(finished())[:20])
    *before, told, after = read(path)
    assert [*before, after] == [beginning(), reading(), reading()]
    assert isinstance(told, LineDamaged)
    assert told.line == 3
    assert told.detail.startswith(f"line 3 of the log is damaged{detail}")
    assert damaged_lines(path) == [3]


WHOLE = Path(__file__).parents[1] / "fixtures" / "runs" / "time-precisions.jsonl"


def samples(cell: Any) -> dict[str, list[float]]:
    return {name: phase.wall.samples_s for name, phase in cell.phases.items() if phase.wall}


def test_one_damaged_line_costs_one_cell_at_the_most(tmp_path: Path) -> None:
    whole = runs.load(WHOLE)
    lines = WHOLE.read_bytes().splitlines(keepends=True)
    path = tmp_path / "damaged.jsonl"
    for number in range(2, len(lines) + 1):
        line = lines[number - 1]
        changed = b"{}\n" if number % 2 else line[: len(line) // 2] + b"\xff" + line[len(line) // 2 + 1 :]
        path.write_bytes(b"".join([*lines[: number - 1], changed, *lines[number:]]))
        record = runs.load(path)
        assert record.damaged_lines == [number]
        pairs = zip(
            record.cells, whole.cells, strict=True
        )  # what is lost of the run takes shares and doubts, no sample
        differing = [one for one, other in pairs if (one.outcome, samples(one)) != (other.outcome, samples(other))]
        assert len(differing) <= 1, number
        assert all(cell.outcome in ("unfinished", "not run") for cell in differing), number
        earlier = read_earlier_run(path)
        kept = {key for key, outcome in earlier.outcomes.items() if outcome in LASTING}
        assert kept == {cell.key for cell in whole.cells} - {cell.key for cell in differing}, number


@pytest.mark.parametrize(
    ("name", "message"),
    [("missing.jsonl", "cannot read {path}: no such file"), (".", "cannot read {path}: is a directory")],
)
def test_a_log_that_cannot_be_opened_is_told_in_one_line(tmp_path: Path, name: str, message: str) -> None:
    path = tmp_path / name
    with pytest.raises(LogError) as caught:
        list(read(path))
    assert str(caught.value) == message.format(path=path)


def test_every_event_has_a_name_of_its_own() -> None:
    # A new event that cannot be told apart from another would make logs unreadable.
    for kind in kinds():
        command_of(kind).records()
    classes = [each for each in Event.__subclasses__() if each.__module__.startswith("sysbench.")]
    assert len(classes) >= 40
    assert {name: EVENTS[name] for name in EVENTS if EVENTS[name] in classes} == {
        each.model_fields["event"].default: each for each in classes
    }


def test_reading_a_large_log_takes_little_memory(tmp_path: Path) -> None:
    path = written(tmp_path, beginning())
    line = encode(reading()) + b"\n"
    with path.open("ab") as file:
        for _ in range(100):
            file.write(line * 3000)
    program = (
        "import resource, sys; from pathlib import Path; from sysbench.log.journal import read\n"
        "events = read(Path(sys.argv[1])); next(events)\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "count = sum(1 for number, _ in zip(range(20_000), events))\n"
        "print(count, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    shown = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True)
    count, grown_kib = map(int, shown.stdout.split())
    assert count == 20_000
    assert grown_kib * 1024 < path.stat().st_size / 10


# Places that cannot be written to


def test_a_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    with pytest.raises(OutputError, match=r"runs: it is a file, not a directory$"):
        Log.create(tmp_path / "runs", "time")
    with pytest.raises(OutputError, match=r"^cannot create .*not a directory$"):
        Log.create(tmp_path / "runs" / "deeper", "time")


def test_a_directory_without_permission_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    with permissions_obeyed():
        with pytest.raises(
            OutputError, match=rf"^cannot write {re.escape(str(tmp_path))}/.*\.jsonl: permission denied$"
        ):
            Log.create(tmp_path, "time")
        with pytest.raises(OutputError, match=rf"^cannot create {re.escape(str(tmp_path))}/new: permission denied$"):
            Log.create(tmp_path / "new", "time")


FILLING = """
import resource, signal, sys
from pathlib import Path
from sysbench.log.journal import Log
from sysbench.errors import OutputError
from tests.log.test_log import beginning, reading

log = Log.create(Path(sys.argv[1]), "time")
log.append(beginning())
size = log.path.stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size + int(sys.argv[2]), size + int(sys.argv[2])))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
try:
    for _ in range(100):
        log.append(reading())
except OutputError as error:
    print(error)
log.close()
"""


@pytest.mark.parametrize("room_bytes", [0, 10, 1000])
def test_a_disk_that_fills_up_leaves_a_whole_log(tmp_path: Path, room_bytes: int) -> None:
    # A limit on file size fails like a full disk: first a short write, then an error.
    shown = subprocess.run(
        [sys.executable, "-c", FILLING, str(tmp_path), str(room_bytes)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    (path,) = tmp_path.iterdir()
    assert shown.stdout.strip() == f"cannot write {path}: file too large"
    line_bytes = len(encode(reading())) + 1
    assert list(read(path)) == [beginning()] + [reading()] * (room_bytes // line_bytes)
    assert path.read_bytes().endswith(b"\n")


def test_a_log_that_is_being_written_is_not_continued_by_another(tmp_path: Path) -> None:
    with Log.create(tmp_path, "time") as log:
        log.append(beginning())
        with pytest.raises(UsageError) as caught:
            Log.reopen(log.path)
    assert str(caught.value) == f"{log.path} is being written by another sysbench that is still running"
    Log.reopen(log.path).close()


def test_what_a_refused_continuation_wrote_is_taken_back(tmp_path: Path) -> None:
    path = written(tmp_path, beginning(), finished())
    before = path.read_bytes()
    with Log.reopen(path) as log:
        log.truncate_partial_line()
        log.append(reading())
        log.roll_back()
    assert path.read_bytes() == before
