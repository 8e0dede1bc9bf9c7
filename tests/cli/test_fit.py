"""`sysbench fit` as a user meets it."""

from __future__ import annotations

import json
import re
import shlex
import signal
from pathlib import Path
from typing import Any

import pytest

from sysbench.commands.fit.spec import CTX_UNIT, FitOptions, FitSpec, remedy_names
from sysbench.predict.simulated_step import SimulatedStep
from sysbench.spec.command_options import command_line, parse_options
from tests.cli.running import Ran, answered, ran_once, record_in, started, wait_until
from tests.processes import HANG_S

QUESTION = ("--d-model=64", "--d-ff=256", "--layers=1", "--heads=4", "--vocab=20000", "--ctx=256", "--batch=4")
SHAPE = {"d_model": (64,), "d_ff": (256,), "layers": (1,), "heads": (4,), "vocab": (20_000,)}
SMALL = (
    *("--vocab=48000" if word.startswith("--vocab") else word for word in QUESTION),  # too large for any CUDA context
    "--on=rtx-4090,24GiB",
    "--budget=1100MiB",
    "--keep=precision,ranks,attention,optimizer-in-backward,lora,allocator",
    "--price=rtx-4090=0.4",
    "--tokens=1B",
)


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ran, Path]:
    """A step that does not fit as asked, and what was left."""
    words = (*SMALL, "--explain", "--figure=f.svg")
    ran, out = ran_once(tmp_path_factory, "fit", "fit", *words, COLUMNS="300")
    assert ran.code == 0, ran.err
    return ran, out


@pytest.fixture(scope="module")
def trials(answer: tuple[Ran, Path]) -> list[dict[str, Any]]:
    (cell,) = record_in(answer[1] / "runs")["cells"]
    found: list[dict[str, Any]] = cell["trials"]
    return found


def test_the_answer_says_what_does_not_fit_why_and_what_to_change(answer: tuple[Ran, Path]) -> None:
    shown = answer[0].out
    for words in (
        "does not fit",
        "logits and their gradients",
        "chunked cross-entropy, micro-batches",
        "changes that make it fit on rtx-4090, fastest first",
        "rtx-4090: as asked, the step does not fit",
        "It fits with",
        "--optimizer fused --cross-entropy chunked --simulate",
    ):
        assert words in shown
    assert "Step time against memory" in (answer[1] / "f.svg").read_text()


def test_each_command_alone_gives_the_bytes_and_the_time_of_its_row(answer: tuple[Ran, Path], tmp_path: Path) -> None:
    lines = [line.split("sysbench ", 1)[1] for line in answer[0].out.splitlines() if " sysbench " in line]
    assert len(lines) >= 4
    (cell,) = record_in(answer[1] / "runs")["cells"]
    for number, line in enumerate(lines):
        out = tmp_path / str(number)
        kind, *words = shlex.split(line)
        ran = answered(kind, *words, "--quiet", f"--out={out}")
        assert ran.code == 0, ran.err
        (alone,) = record_in(out)["cells"]
        gpu = words[words.index("--simulate") + 1]
        same = [each for each in cell["trials"] if each["gpu"] == gpu and is_of(each["changes"], alone["axes"])]
        assert len(same) == 1
        (trial,) = same
        # The budget is not the GPU's memory, so margins differ by the difference of the two.
        if kind == "time":
            assert alone["prediction"]["allocated_peak_bytes"] == trial["allocated_peak_bytes"]
            assert alone["prediction"]["step"] == trial["step"]
            unused = alone["prediction"]["memory_bytes"] - trial["gpu_bytes"]
            assert alone["prediction"]["margin_bytes"] == trial["margin_bytes"] + unused
        else:
            assert alone["peak_allocated_bytes"] == trial["allocated_peak_bytes"]


KNOBS = {
    "attention": "naive",
    "optimizer": "foreach",
    "checkpoint": "none",
    "cross_entropy": "full",
    "allocator": "default",
    "precision": "fp32",
    "optimizer_in_backward": "off",
    "lora": 0,
    "grad_accum": 1,
}


def is_of(changes: dict[str, Any], axes: dict[str, Any]) -> bool:
    return all(axes.get(name, default) == changes.get(name, default) for name, default in KNOBS.items())


def test_the_whole_training_has_hours_and_a_cost(trials: list[dict[str, Any]], answer: tuple[Ran, Path]) -> None:
    asked = next(each for each in trials if each["gpu"] == "rtx-4090" and not each["changes"])
    hours = 1e9 / asked["tokens"] * asked["step"]["point_s"] / 3600
    row = next(line for line in answer[0].out.splitlines() if line.startswith(" rtx-4090"))
    cost, low, high = (float(number) for number in re.findall(r"[\d.]+", row.replace(",", ""))[-3:])
    assert cost == pytest.approx(0.4 * hours, rel=0.01)
    ends = (asked["step"][end] / asked["step"]["point_s"] for end in ("low_s", "high_s"))
    assert [low / cost, high / cost] == pytest.approx(list(ends), rel=0.02)
    said = re.search(r"1\.00 B tokens take .* on rtx-4090 and cost ([\d.]+) ", answer[0].out)
    assert said is not None
    fitting = [each for each in trials if each["gpu"] == "rtx-4090" and each["fits"]]
    costs = [0.4 * 1e9 / each["tokens"] * each["step"]["point_s"] / 3600 for each in fitting]
    assert any(float(said[1]) == pytest.approx(each, rel=0.01) for each in costs)


def test_a_gpu_of_which_only_the_memory_is_known_has_no_times(trials: list[dict[str, Any]]) -> None:
    assert {each["step"] is None for each in trials if each["gpu"] == "24GiB"} == {True}


def test_the_gate_exits_with_3_only_where_the_step_does_not_fit(tmp_path: Path) -> None:
    words = (
        "fit",
        *QUESTION,
        "--on=24GiB",
        "--keep=batch,precision,lora,optimizer,optimizer-in-backward,checkpoint,cross-entropy,ranks",
        "--gate",
    )
    refused = answered(*words, "--budget=760MiB", cwd=tmp_path)
    assert refused.code == 3
    assert "1 combination simulated" in refused.err  # a gate needs no search
    assert answered(*words, cwd=tmp_path).code == 0


def test_where_nothing_fits_the_nearest_miss_and_what_it_takes_are_said(tmp_path: Path) -> None:
    keep = "--keep=batch,precision,lora,optimizer,optimizer-in-backward,checkpoint,cross-entropy,ranks"
    ran = answered("fit", *QUESTION, "--on=24GiB", "--budget=610MiB", keep, cwd=tmp_path, COLUMNS="400")
    assert ran.code == 0
    assert "Nothing that was tried fits: nearest is" in ran.out
    assert "lacks" in ran.out
    assert "The smallest known GPUs that have enough for" in ran.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--on=h10",), "--on h10 is not a known GPU or a memory size such as 24GiB. Did you mean h100?"),
        (("--keep=bach",), "--keep bach is not something that fit changes. Did you mean batch?"),
        (
            ("--keep=ranks", "--max-ranks=4"),
            "--keep ranks allows no other number of GPUs, --max-ranks 4 does: drop one",
        ),
        (("--faster", f"--keep={','.join(remedy_names())}"), "--faster has nothing to try: drop one"),
        (("--budget=22",), "--budget 22 is not a memory size, such as 22GiB"),
        (("--tokens=1x",), "--tokens 1x is not a number of tokens, such as 500k, 20M or 1.5B"),
        (("--tokens-per-step=1000", "--batch=4", "--ctx=256"), "Nearest: 1024"),
        (("--tokens-per-step=1024", "--grad-accum=2"), "--tokens-per-step determines --grad-accum: drop one of them"),
        (("--on=h100", "--price=a100-80gb=1"), "--price names a100-80gb, but --on does not"),
        (
            ("--on=h100", "--tokens=1B", "--columns=cost"),
            "--columns cost needs the price of a GPU hour: --price h100=2.5",
        ),
        (("--ctx=128,256",), "fit answers one question at a time. Give one: --ctx 128"),
        (("--on=h100", "--device=cuda"), "--device names what to measure on, but fit simulates: --on names GPUs"),
        (("--compile", "--on=h100"), "--execution compiled takes a minute or more to simulate"),
        (("--table", "--explain"), "--table shows limits in place of changes, which --explain needs: drop one of them"),
        (("--on=h100", "--table", "--gate"), "--table answers for other batches and contexts, and --gate for"),
        (("--on=h100", "--verify"), "--verify measures on a GPU of --on, but this machine has no GPU"),
    ],
)
def test_a_question_that_makes_no_sense_is_answered_with_one_line(
    words: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    ran = answered("fit", *words, cwd=tmp_path)
    assert ran.code == 2
    assert said in " ".join(ran.err.split())
    assert len(ran.err.strip().splitlines()) == 1


def test_a_gate_answers_for_a_compiled_step(tmp_path: Path) -> None:
    needed = []
    for words in ((), ("--compile",)):
        ran = answered("fit", *QUESTION, *words, "--on=24GiB", "--gate", "--json=-", "-q", cwd=tmp_path)
        assert ran.code == 0, ran.err
        (trial,) = json.loads(ran.out)["cells"][0]["trials"]
        needed.append(trial["gpu_bytes"] - trial["margin_bytes"])
    assert needed[1] < needed[0]


def test_tokens_per_step_determine_the_micro_batches(tmp_path: Path) -> None:
    ran = answered("fit", *QUESTION, "--on=24GiB", "--keep=lora", "--tokens-per-step=4096", "--out=runs", cwd=tmp_path)
    assert ran.code == 0, ran.err
    (cell,) = record_in(tmp_path / "runs")["cells"]
    assert cell["axes"]["grad_accum"] == 4
    assert cell["trials"][0]["tokens"] == 4096


SIZES = ("1GiB", "3GiB")


@pytest.fixture(scope="module")
def limits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ran, list[dict[str, Any]]]:
    ran, out = ran_once(
        tmp_path_factory, "largest", "fit", *QUESTION, "--table", f"--on={','.join(SIZES)},t4,rtx-4090", "--bf16"
    )
    assert ran.code == 0, ran.err
    (cell,) = record_in(out / "runs")["cells"]
    found: list[dict[str, Any]] = cell["extents"]
    return ran, found


def test_the_largest_batches_are_those_that_a_search_by_simulation_alone_finds(
    limits: tuple[Ran, list[dict[str, Any]]], tmp_path: Path
) -> None:
    for size in SIZES:
        words = (
            "memory",
            *QUESTION,
            "--bf16",
            "--mode=train",
            "--find=batch",
            f"--simulate={size}",
            f"--out={tmp_path / size}",
        )
        assert answered(*words).code == 0
        (cell,) = record_in(tmp_path / size)["cells"]
        (found,) = [each for each in limits[1] if (each["gpu"], each["axis"]) == (size, "batch")]
        assert found["largest"] == cell["found"]["value"]
        assert 0 < found["safe"] <= found["largest"]


def test_the_largest_context_fits_and_the_next_one_does_not(limits: tuple[Ran, list[dict[str, Any]]]) -> None:
    for size in SIZES:
        (found,) = [each for each in limits[1] if (each["gpu"], each["axis"]) == (size, "ctx")]
        assert found["largest"] % CTX_UNIT == 0
        (cell,) = FitSpec(**SHAPE, ctx=(found["largest"],), batch=(4,), precision=("bf16",), gpus=(size,)).cells()
        beyond = cell.step.model_copy(update={"ctx": found["largest"] + CTX_UNIT})
        assert [SimulatedStep(each, size).memory[1].fits for each in (cell.step, beyond)] == [True, False]


def test_a_gpu_that_cannot_run_the_step_has_no_limits_but_a_reason(
    limits: tuple[Ran, list[dict[str, Any]]],
) -> None:
    assert [each["largest"] for each in limits[1] if each["gpu"] == "t4"] == [0, 0]
    assert "t4: bf16 needs sm80 or newer" in limits[0].out
    assert "Batch 4 at ctx 256 fits safely on 2 of 4 GPUs: 3GiB is the smallest of them." in limits[0].out


def test_the_explanation_has_every_byte_of_both_peaks(answer: tuple[Ran, Path], trials: list[dict[str, Any]]) -> None:
    for trial in trials:
        assert sum(trial["by_category"].values()) == trial["allocated_peak_bytes"]
    shown = answer[0].out
    assert "memory at the peak, before and after the first suggestion, on rtx-4090" in shown
    assert "more, which backward computes again" in shown


def test_a_model_whose_trace_fails_gets_the_reason_that_memory_gives(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("def build():\n    raise RuntimeError('the reason in the model')\n")
    words = ("--model=model.py:build", "--ctx=16", "--batch=1", "--out=runs")
    outcomes = []
    for kind, gpu in (("fit", "--on=24GiB"), ("memory", "--simulate=24GiB")):
        ran = answered(kind, *words, gpu, *(["--mode=train"] if kind == "memory" else []), cwd=tmp_path, COLUMNS="300")
        assert ran.code == 1
        assert "the reason in the model" in ran.out
        record = json.loads(max((tmp_path / "runs").glob(f"*-{kind}.json")).read_text())
        outcomes.append([(cell["outcome"], cell["detail"]) for cell in record["cells"]])
    assert outcomes[0] == outcomes[1]


def test_an_interrupted_search_shows_what_was_found_so_far_and_says_that_it_did_not_end(tmp_path: Path) -> None:
    words = ("fit", *QUESTION, "--on=24GiB", "--faster", "--keep=ranks,lora", "--out=.", "--no-live")

    def has_tried() -> bool:
        return any("combination_tried" in path.read_text() for path in tmp_path.glob("*.jsonl"))

    with started(*words, cwd=tmp_path, COLUMNS="300") as process:
        wait_until(has_tried, process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 130, err
    assert "24GiB: as asked, the step fits" in out
    assert "The search did not end: better changes may exist." in out
    assert record_in(tmp_path)["status"] == "interrupted"


def test_a_search_with_a_time_limit_answers_with_what_it_has_by_then(tmp_path: Path) -> None:
    ran = answered("fit", *QUESTION, "--on=24GiB,16GiB", "--faster", "--max-time=0.01s", cwd=tmp_path, COLUMNS="300")
    assert ran.code == 0, ran.err
    assert "24GiB: as asked, the step fits" in ran.out
    assert "16GiB: as asked, the step fits" in ran.out
    assert "The search was stopped at --max-time 0.01s: better changes may exist." in ran.out
    (cell,) = record_in(tmp_path / "runs")["cells"]
    assert (cell["stopped_after_s"], [trial["changes"] for trial in cell["trials"]]) == (0.01, [{}, {}])


@pytest.mark.parametrize("words", ["--budget=22GiB", "--budget=700.3MiB", "--host-link=25GB/s", "--host-link=12.5GB/s"])
def test_sizes_and_rates_are_written_as_they_are_read(words: str) -> None:
    spec, _ = parse_options("fit", ["--on=h100", words], FitSpec, FitOptions)
    asked = FitSpec(**spec)
    again, _ = parse_options("fit", shlex.split(command_line(asked))[2:], FitSpec, FitOptions)
    assert words.partition("=")[2] in command_line(asked) or "700.3" in words
    assert FitSpec(**again) == asked
