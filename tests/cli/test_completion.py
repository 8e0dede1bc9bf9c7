"""What a shell offers for the value of an option."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.running import answered, environment


def offered(line: str, cwd: Path | None = None) -> list[str]:
    """What bash would list for the last word of a line; a line that ends in a space begins a new one."""
    count = len(line.split()) - (not line.endswith(" "))
    ran = answered(cwd=cwd, COMP_WORDS=line, COMP_CWORD=str(count), _SYSBENCH_COMPLETE="complete_bash")
    assert ran.err == ""
    return ran.out.split()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("sysbench time --size t", ["tiny"]),
        ("sysbench time --buck", ["--bucket-mb"]),  # an option that --help leaves out
        ("sysbench gpus h100-", ["h100-nvl", "h100-pcie"]),
        ("sysbench models llama-2-", ["llama-2-13b", "llama-2-70b", "llama-2-7b"]),
        ("sysbench fit --model phi-4", ["phi-4", "phi-4-mini"]),
        ("sysbench time --size tiny,sm", ["tiny,small"]),
        ("sysbench time --precision fp32,b", ["fp32,bf16", "fp32,bf16-true"]),
        ("sysbench time --dtype f", ["fp32", "fp16", "fp16-true", "fp8", "fp8-rowwise"]),
        ("sysbench memory --simulate h100-", ["h100-nvl", "h100-pcie"]),
        ("sysbench memory --simulate t4,h2", ["t4,h20", "t4,h200"]),
        ("sysbench time --plan --simulate l4", ["l4", "l40s"]),
        ("sysbench run quick --plan --for b", ["b200", "b300"]),
        ("sysbench accum --size to", ["toy"]),
        ("sysbench accum no", ["norm"]),
        ("sysbench attention --impl sdpa-f", ["sdpa-flash"]),
        ("sysbench time --format m", ["markdown"]),
        ("sysbench time --ctx 1", []),
        ("sysbench time --from nowhere/", []),
    ],
)
def test_values_are_completed(tmp_path: Path, line: str, expected: list[str]) -> None:
    assert offered(line, tmp_path) == expected


@pytest.mark.parametrize(
    "words",
    ["report", "compare", "compare latest", "history", "time --from", "memory --from", "profile --from", "loop"],
)
def test_names_of_runs_are_completed(tmp_path: Path, words: str) -> None:
    runs = tmp_path / "runs"
    (runs / "2026-11-20T10-00-00-quick").mkdir(parents=True)
    for name in ("2026-11-20T09-00-00-time.jsonl", "2026-11-20T09-00-00-time.json", "2026-11-21T09-00-00-memory.jsonl"):
        (runs / name).touch()
    assert sorted(offered(f"sysbench {words} 2026-11-20", tmp_path)) == [
        "2026-11-20T09-00-00-time", "2026-11-20T10-00-00-quick",
    ]  # fmt: skip
    assert offered(f"sysbench {words} lat", tmp_path) == ["latest"]


def test_completing_a_value_imports_no_torch() -> None:
    program = (
        "import sys\ntry:\n    from sysbench.cli import main\n    main([])\n"
        "finally:\n    print('torch' in sys.modules, file=sys.stderr)"
    )
    words = {"COMP_WORDS": "sysbench time --size sm", "COMP_CWORD": "3", "_SYSBENCH_COMPLETE": "complete_bash"}
    ran = subprocess.run(
        [sys.executable, "-c", program], env=environment(**words), capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr.strip()) == (0, "False")
    assert "small" in ran.stdout.split()
