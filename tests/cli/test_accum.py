"""`sysbench accum` as a user meets it."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest

from tests.cli.running import Ran, answered, only, ran_once, record_in, sysbench


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ran, Path]:
    """`sysbench accum`, and the directory it left its files in."""
    ran, out = ran_once(tmp_path_factory, "accum-plain", "accum", "--out=.", COLUMNS="80")
    assert ran.code == 0, ran.err
    return ran, out


def test_without_any_option_the_four_sums_are_shown_to_the_last_digit(plain: tuple[Ran, Path]) -> None:
    shown = plain[0].out
    rows = [line.split() for line in shown.splitlines() if line.startswith((" fp32", " fp16"))][:4]
    assert [row[3] for row in rows] == ["10.00013351", "9.95312500", "10.00213623", "10.00213623"]
    assert "fp32(fp16)" in shown
    assert "2,798" in shown
    assert "Adding fp16 numbers in fp16 gives an error of -4.7e-02" in shown


def test_the_sums_fit_a_screen_of_80_by_24(plain: tuple[Ran, Path]) -> None:
    lines = plain[0].out.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert "a wider terminal" not in plain[0].out


def test_the_record_has_what_was_shown_and_reads_back_alike(plain: tuple[Ran, Path]) -> None:
    ran, out = plain
    (cell,) = record_in(out)["cells"]
    assert {"sums", "dtypes"} <= cell.keys()
    for pattern in ("*.json", "*.jsonl"):
        assert answered("accum", f"--from={only(out, pattern)}", COLUMNS="80").out == ran.out


def test_csv_has_the_digits_that_identify_an_fp32_number(plain: tuple[Ran, Path]) -> None:
    ran = answered("accum", f"--from={only(plain[1], '*.json')}", "--format=csv")
    rows = list(csv.DictReader(io.StringIO(ran.out)))
    results = {row["subject"]: row["number"] for row in rows if row["quantity"] == "result"}
    assert np.float32(results["fp32 += fp32, sequential"]) == np.float32(10.000133514404297)


def test_json_on_stdout_is_the_record_alone(tmp_path: Path) -> None:
    ran = sysbench("accum", "--value=100000", "--dtype=fp16", "--order=sequential", "--json=-", f"--out={tmp_path}")
    content = json.loads(ran.out, parse_constant=pytest.fail)
    assert content["kind"] == "accum"
    assert content["cells"][0]["sums"][0]["result"] == "inf"


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ran, Path]:
    """Every experiment, as small as it goes."""
    words = ("all", "--width=64", "--size=toy", "--out=.")
    ran, out = ran_once(tmp_path_factory, "accum-of-all", "accum", *words, COLUMNS="80")
    assert ran.code == 0, ran.err
    return ran, out


def test_every_experiment_has_its_table_and_its_sentence(several: tuple[Ran, Path]) -> None:
    ran, _ = several
    for said in (
        "dtypes in toy under autocast",
        "layer norm: input scale",
        "the dtypes are: parameters fp32, fc1 fp16, ln fp32, logits fp16, loss fp32, gradients fp32.",
        "Layer norm in fp16 fails from scale",
    ):
        assert said in " ".join(ran.out.split()), said
    assert max(map(len, ran.out.splitlines())) <= 80


def test_what_is_simulated_of_cuda_says_so_and_differences_are_marked(several: tuple[Ran, Path]) -> None:
    lines = several[0].out.splitlines()
    assert any("CUDA, simulated" in line for line in lines)
    (norm,) = [line for line in lines if line.startswith(" ln ")]
    assert norm.count("≠") == 2
    assert "≠" not in next(line for line in lines if line.startswith(" fc1 "))


@pytest.fixture(scope="module")
def transformers(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """The types in a Transformer, and in one that is too large for any machine that runs the tests."""
    words = ("autocast", "--size=tiny,10b", "--ctx=4", "--batch=1", "--out=.")
    ran, _ = ran_once(tmp_path_factory, "accum-of-transformers", "accum", *words, COLUMNS="80")
    return ran


def test_the_types_of_a_transformer_fit_a_screen(transformers: Ran) -> None:
    ran = transformers
    lines = ran.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.startswith(" layers.*.attention.q ") and line.split().count("fp16") == 2 for line in lines)
    assert "On this CPU, all" in " ".join(ran.out.split())


def test_sums_that_would_take_hours_are_refused_by_what_their_first_steps_take(tmp_path: Path) -> None:
    ran = answered("accum", "--count=1e8", f"--out={tmp_path}")
    assert ran.code == 1
    said = " ".join(ran.out.split())
    assert "--count 100000000 would take about" in said
    assert "longer than --budget 60" in said


def test_a_model_that_does_not_fit_is_not_started(transformers: Ran) -> None:
    assert transformers.code == 0  # the other one was measured
    assert "autocast 10b  skipped: needs about" in transformers.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--value=nan",), "--value nan cannot be summed: any finite number other than 0 is allowed"),
        (("nrom",), "EXPERIMENT nrom is not an experiment. Did you mean norm?"),
        (("--tables=sum",), "--tables sum is not a table. Did you mean sums?"),
        (("--from=nowhere.json",), "cannot read nowhere.json"),
        (("--from=nowhere.json", "--count=3"), "--from shows a finished run; --count would have no effect"),
    ],
)
def test_a_mistake_gets_one_line_and_leaves_nothing(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    ran = answered("accum", *words, cwd=tmp_path)
    assert ran.code in (1, 2)
    assert ran.out == ""
    assert said in ran.complaint
    assert list(tmp_path.iterdir()) == []
