"""The walls of the house, as CONTRIBUTING draws them."""

import subprocess
import sys

import pytest

WITHOUT_TORCH = """
import runpy, sys
sys.argv = ["sysbench", *sys.argv[1:]]
try:
    runpy.run_module("sysbench", run_name="__main__")
finally:
    heavy = sorted({"torch", "einops"} & set(sys.modules))
    print("imported:", *heavy, file=sys.stderr)
"""


def test_imports_go_in_the_directions_that_are_declared() -> None:
    checked = subprocess.run(
        [sys.executable, "-c", "import importlinter.cli as c; c.lint_imports_command()"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--help"], 0),
        (["time", "--help"], 0),
        (["time", "--plan", "--size", "small"], 0),
        (["time", "--size", "smal"], 2),
        (["time", "--heads", "5"], 2),
        (["time", "--no-such-option"], 2),
        (["memory", "--help"], 0),
        (["memory", "--plan", "--size", "small", "--simulate", "24GiB"], 0),
        (["memory", "--simulate", "a101"], 2),
        (["memory", "--from", "nowhere.pickle"], 2),
        (["doctor"], 0),
        (["run"], 0),
        (["run", "sizes", "--size", "smal"], 2),
    ],
)
def test_torch_stays_out_of_what_does_not_measure(arguments: list[str], code: int) -> None:
    ran = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, *arguments], capture_output=True, text=True, check=False)
    assert ran.returncode == code, ran.stderr
    assert ran.stderr.splitlines()[-1].strip() == "imported:"
