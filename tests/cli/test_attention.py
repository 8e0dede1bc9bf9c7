"""`sysbench attention` as its users meet it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.cli.running import answered, only, record_in, sysbench

SMALL = ("attention", "--dim", "16", "--seq", "32,64,128", "--batch", "1", "--repeats", "6", "--warmup", "1")


def test_a_sweep_leaves_a_record_pictures_and_an_answer(tmp_path: Path) -> None:
    ran = sysbench(
        *SMALL,
        "--impl",
        "naive,sdpa-flash",
        "--device",
        "cpu",
        "--figure",
        "c.svg",
        cwd=tmp_path,
    )
    assert ran.code == 0, ran.err
    assert "128.5 KiB" in ran.out
    assert (tmp_path / "c.svg").stat().st_size > 1000
    record = record_in(tmp_path / "runs")
    assert record["kind"] == "attention"
    assert [cell["outcome"] for cell in record["cells"]] == ["ok"] * 6
    again = answered(
        "attention", "--from", str(only(tmp_path / "runs", "*.json")), "--tables", "comparison", cwd=tmp_path
    )
    assert again.code == 0
    assert "seq_len" in again.out


def test_every_implementation_can_be_put_beside_the_others_for_a_gpu_that_is_not_here(tmp_path: Path) -> None:
    words = ("--simulate", "a100-80gb,t4", "--bf16", "--dim", "64", "--seq", "1024", "--quiet")
    names = ("naive", "sdpa-math", "sdpa-efficient", "sdpa-flash", "sdpa-cudnn", "flex", "flash-attn")
    ran = answered("attention", *words, "--impl", ",".join(names), "--json", "-", cwd=tmp_path)
    assert ran.code == 1, ran.err
    cells = json.loads(ran.out)["cells"]
    assert [cell["axes"]["implementation"] for cell in cells] == [*names, *names]
    assert [cell["outcome"] for cell in cells] == [*["ok"] * 7, *["invalid"] * 7]
    assert all(cell["saved_bytes"] < cell["before_backward_bytes"] < cell["peak_allocated_bytes"] for cell in cells[:7])
    assert all(cell["peak_allocated_bytes"] <= cell["peak_reserved_bytes"] for cell in cells[:7])
    assert "bf16 needs sm80 or newer" in cells[-1]["detail"]


def test_a_cell_over_budget_is_skipped_and_the_run_is_none_the_worse(tmp_path: Path) -> None:
    sizes = ("--dim", "16", "--seq", "16,4096", "--batch", "1", "--repeats", "2", "--warmup", "0")
    ran = answered("attention", *sizes, "--device", "cpu", "--max-time", "0.02s", "--json", "-", cwd=tmp_path)
    assert ran.code == 0, ran.err
    found = [(cell["outcome"], cell["detail"]) for cell in json.loads(ran.out)["cells"]]
    assert found[0] == ("ok", None)
    assert found[1][0] == "skipped"
    assert "longer than --max-time 0.02s" in found[1][1]


@pytest.mark.skipif(torch.cuda.is_available() or torch.backends.mps.is_available(), reason="for machines without a GPU")
def test_without_a_gpu_a_sweep_is_predicted_and_simulated_unless_the_cpu_is_named(tmp_path: Path) -> None:
    sizes = ("--sweep", "--dim", "16", "--seq", "64", "--batch", "1", "--repeats", "2", "--warmup", "0", "--json", "-")
    ran = answered("attention", *sizes, cwd=tmp_path)
    assert ran.code == 0, ran.err
    assert ran.err.splitlines()[0].startswith("no GPU here: simulating NVIDIA H100 80GB")
    (cell,) = json.loads(ran.out)["cells"]
    assert (cell["axes"]["simulate"], cell["source"]) == ("h100", "predicted")
    (measured,) = json.loads(answered("attention", *sizes, "--device", "cpu", cwd=tmp_path).out)["cells"]
    assert measured["source"] == "measured"


OF_MINE = """
import time

def hangs(q, k, v):
    time.sleep(600)

def sums(q, k, v):
    return q.sum()
"""


@pytest.mark.slow
def test_a_function_that_never_returns_or_is_not_attention_fails_its_cell_and_the_next_is_measured(
    tmp_path: Path,
) -> None:
    (tmp_path / "mine.py").write_text(OF_MINE)
    words = ("--impl", "mine:hangs,mine:sums,naive", "--device", "cpu", "--timeout", "30")
    ran = answered(*SMALL[:3], "--seq", "32", *SMALL[5:], *words, cwd=tmp_path)
    assert ran.code == 1, ran.err
    cells = record_in(tmp_path / "runs")["cells"]
    assert [cell["outcome"] for cell in cells] == ["timeout", "invalid", "ok"]
    said = " ".join(ran.out.split())
    assert "the worker sent no message for 30 s" in said
    assert "returned () instead of (1, 32, 16)" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--seq", "0"), "--seq 0 is out of range: it must be 1 or more. Nearest: 1"),
        (("--batch", "-1"), "--batch -1 is out of range"),
        (("--impl", "naiv"), "naiv is not an implementation. Did you mean naive?"),
        (("--tables", "comparson"), "comparson is not a table. Did you mean comparison?"),
        (("--figure", "c.gif"), "--figure c.gif must end in .png, .svg, .pdf"),
        (("--simulate", "a100-80gb", "--device", "cpu"), "--simulate measures nothing"),
        (("--precision", "fp16", "--device", "cpu"), "--precision fp16 is not supported on the CPU"),
    ],
)
def test_a_mistake_gets_one_line(words: tuple[str, ...], said: str) -> None:
    ran = answered("attention", *words)
    assert ran.code == 2
    assert said in ran.complaint
