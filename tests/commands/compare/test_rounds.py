"""Two arms in turns: the order of turns, a fresh process for each, and what is left when it is stopped."""

from __future__ import annotations

import io
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from sysbench.commands.attention.spec import AttentionSpec
from sysbench.commands.compare.ab import (
    ArmRun,
    RoundProgress,
    arm_order,
    parse_arms,
    parse_spec,
    run_rounds,
    say,
)
from sysbench.commands.compare.cells import build_side
from sysbench.commands.compare.comparison import Rules, compare
from sysbench.commands.compare.spec import CompareOptions
from sysbench.commands.time.spec import TimeSpec
from sysbench.errors import SysbenchError, UsageError
from sysbench.log.events import Arm, Event, StepMeasured, WorkerReady
from sysbench.log.runs import find, find_arms, load
from sysbench.log.storage import create_directory
from sysbench.spec.cell import RunSpec
from sysbench.spec.run import RunOptions
from tests.engine.fakes import ScriptedLauncher, spec_of
from tests.fixtures_runs import stream, write_log


class Watcher:
    """Takes down what is said, and stops everything at some point if it is told to."""

    def __init__(self, stop_at: tuple[int, Arm] | None = None) -> None:
        self.workers: list[tuple[int, Arm, int]] = []
        self._stop_at = stop_at

    def __call__(self, number: int, arm: Arm, event: Event) -> None:
        if isinstance(event, WorkerReady):
            self.workers.append((number, arm, event.pid))
        if isinstance(event, StepMeasured) and (number, arm) == self._stop_at:
            os.kill(os.getpid(), signal.SIGINT)


def measure(tmp_path: Path, rounds: int, watcher: Watcher | None = None, **script: Any) -> tuple[Path, list[ArmRun]]:
    directory = create_directory(tmp_path / "runs", "compare")
    specs: dict[Arm, RunSpec] = {"A": spec_of([16]), "B": spec_of([16], execution="compiled")}
    launcher = ScriptedLauncher(**script)
    turns = run_rounds(specs, rounds, directory, RunOptions(), watcher or Watcher(), launcher)
    return directory, list(turns)


def test_the_arm_that_goes_first_alternates() -> None:
    assert "".join(arm for number in range(1, 5) for arm in arm_order(number)) == "ABBAABBA"


def test_every_turn_has_a_process_and_a_log_of_its_own(tmp_path: Path) -> None:
    watcher = Watcher()
    directory, turns = measure(tmp_path, 3, watcher)
    assert [(turn.round, turn.arm) for turn in turns] == [(1, "A"), (1, "B"), (2, "B"), (2, "A"), (3, "A"), (3, "B")]
    assert len({pid for _, _, pid in watcher.workers}) == 6
    assert [turn.log.relative_to(directory).as_posix() for turn in turns[:3]] == [
        "A/round-01.jsonl",
        "B/round-01.jsonl",
        "B/round-02.jsonl",
    ]
    assert [turn.closes_round for turn in turns] == [False, True] * 3
    assert {load(turn.log).status for turn in turns} == {"complete"}


def test_all_turns_compute_on_the_threads_that_the_first_has_chosen(tmp_path: Path) -> None:
    launcher = ScriptedLauncher(threads=[4, 2])
    specs: dict[Arm, RunSpec] = {"A": spec_of([16]), "B": spec_of([16], execution="compiled")}
    directory = create_directory(tmp_path / "runs", "ab")
    turns = [next(rounds := run_rounds(specs, 2, directory, RunOptions(), Watcher(), launcher))]
    launcher.script["threads"] = [4, 4]
    turns += rounds
    chosen = [load(turn.log).environment.threads_probe for turn in turns]
    assert [each.threads if each else None for each in chosen] == [2, 2, 2, 2]


def test_ctrl_c_ends_the_comparison_in_order_and_keeps_what_was_finished(tmp_path: Path) -> None:
    directory, turns = measure(tmp_path, 5, Watcher(stop_at=(2, "B")))
    assert [(turn.round, turn.arm, turn.interrupted) for turn in turns][:2] == [(1, "A", False), (1, "B", False)]
    assert len(turns) <= 4
    assert load(directory / "A" / "round-01.jsonl").status == "complete"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_in_the_middle_of_a_cell_marks_its_turn(tmp_path: Path) -> None:
    _, turns = measure(tmp_path, 5, Watcher(stop_at=(1, "A")), cells={16: "goes on"})
    assert [(turn.round, turn.arm, turn.interrupted) for turn in turns] == [(1, "A", True)]


def test_a_worker_that_cannot_start_ends_the_comparison(tmp_path: Path) -> None:
    with pytest.raises(SysbenchError):
        measure(tmp_path, 3, start="dies")


def test_an_earlier_comparison_is_read_back_as_its_two_arms(tmp_path: Path) -> None:
    directory, _ = measure(tmp_path, 3)
    arms = find_arms(find(str(directory)))
    assert {arm: sorted(files) for arm, files in arms.items()} == {"A": [1, 2, 3], "B": [1, 2, 3]}
    assert find_arms(find(str(directory / "B"))) == {"B": arms["B"]}
    assert find("latest", tmp_path / "runs") == find(str(directory))


def test_the_logs_of_a_comparison_may_have_any_name_and_place(tmp_path: Path) -> None:
    _, turns = measure(tmp_path, 2)
    moved = [turn.log.rename(tmp_path / f"{turn.arm}-and-{turn.round}.jsonl") for turn in turns]
    assert {arm: sorted(files) for arm, files in find_arms(moved).items()} == {"A": [1, 2], "B": [1, 2]}


def test_files_of_anything_else_are_no_arms(tmp_path: Path) -> None:
    _, turns = measure(tmp_path, 1)
    _, others = measure(tmp_path, 1)
    one = turns[0].log
    (tmp_path / "A").mkdir()
    alone = write_log(tmp_path / "A" / "round-01.jsonl", stream("time"))
    for files in ([alone], [one, alone], [one, others[1].log], [tmp_path / "A" / "missing.jsonl"]):
        assert find_arms(files) == {}


def test_a_round_that_one_arm_lacks_is_left_out_wherever_it_was(tmp_path: Path) -> None:
    directory, _ = measure(tmp_path, 4)
    (directory / "A" / "round-02.jsonl").unlink()
    arms = find_arms(find(str(directory)))
    a, b = (build_side(arm, {number: load(path) for number, path in files.items()}) for arm, files in arms.items())
    (cell,) = compare(a, b, Rules(paired=True)).cells
    assert {time.count for time in cell.times} == {3}


def test_two_comparisons_of_one_second_have_a_directory_each(tmp_path: Path) -> None:
    assert create_directory(tmp_path, "compare") != create_directory(tmp_path, "compare")


# The words of a spec


def test_the_words_of_a_spec_are_those_of_the_command() -> None:
    spec = parse_spec("time --size small,medium --ctx 128-512*2 --compile --bf16")
    assert spec == TimeSpec(size="small,medium", ctx="128-512*2", execution="compiled", precision="bf16")
    assert parse_spec("attention --impl naive,flex --causal") == AttentionSpec(impl="naive,flex", causal=True)


def test_time_is_meant_where_no_command_is_named() -> None:
    assert parse_spec("--size small") == parse_spec("sysbench time --size small") == TimeSpec(size="small")
    assert parse_spec("") == TimeSpec()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("--size smal", "--ab, B: --size smal is not a size. Did you mean small?"),
        ("time --bathc 2", "--ab, B: No such option: --bathc"),
        ("memory --ctx 8", "--ab, B: memory is not a command that --ab can measure."),
        ("tiem", "--ab, B: tiem is not a command that --ab can measure. Did you mean time?"),
        ("--size 'small", "--ab, B: cannot split --size 'small into arguments: no closing quotation"),
        ("time small", "--ab, B: unexpected: small. Did you mean --size small?"),
        ("time --ctx", "--ab, B: Option '--ctx' requires an argument"),
        ("time --out x", "--ab, B: No such option: --out"),
        ("time --steps 0", "--ab, B: --steps 0 is out of range: it must be 1 or more. Nearest: 1"),
        ("attention", "--ab: A is a `sysbench time` and B is a `sysbench attention`"),
    ],
)
def test_a_mistake_in_a_spec_is_answered_as_the_command_answers_it(text: str, complaint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_arms(("time", text))
    assert str(caught.value).startswith(complaint)
    assert "\n" not in str(caught.value)


# What is seen meanwhile


def test_every_round_has_a_line_with_what_is_known_so_far(tmp_path: Path) -> None:
    directory, turns = measure(tmp_path, 3)
    lines: list[str] = []
    progress = RoundProgress(3, lines.append)
    for number in (1, 2, 3):
        a, b = (build_side(arm, {1: load(directory / arm / f"round-0{number}.jsonl")}) for arm in ("A", "B"))
        progress.show_round(number, compare(a, b, Rules(paired=True)), 10.0 * number)
    assert lines == [
        "round 1 of 3  step A 1.00 ms, B 1.00 ms  B / A 1.000×  20 s left",
        "round 2 of 3  step A 1.00 ms, B 1.00 ms  B / A 1.000×  so far 1.000  10 s left",
        "round 3 of 3  step A 1.00 ms, B 1.00 ms  B / A 1.000×  so far 1.000 (1.000–1.000)",
    ]
    assert len(turns) == 6


def test_a_stream_that_is_gone_ends_the_progress_and_not_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr("sys.stderr", Gone())
    say("x", CompareOptions(ab=("time", "time")))
