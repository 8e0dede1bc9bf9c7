"""The walls of the house, as CONTRIBUTING draws them."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from grimp import build_graph

ROOT = Path(__file__).parents[2]

WITHOUT_TORCH = """
import contextlib, json, os, runpy, sys
import sysbench.cli  # which each of them imports
for words in json.loads(sys.argv[1]):
    if os.fork():
        os.wait()
        continue
    sys.argv = ["sysbench", *words]
    code = 0
    with open(os.devnull, "w") as null, contextlib.redirect_stdout(null):
        try:
            runpy.run_module("sysbench", run_name="__main__")
        except SystemExit as end:
            code = int(end.code or 0)
    print(json.dumps([words, code, *sorted({"torch", "einops"} & set(sys.modules))]))
    sys.exit()
"""


def test_imports_go_in_the_directions_that_are_declared() -> None:
    checked = subprocess.run(
        [sys.executable, "-c", "import importlinter.cli as c; c.lint_imports_command()"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_imports_within_functions_and_for_types_count_too() -> None:
    linted = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    assert "exclude_type_checking_imports" not in linted
    assert "ignore_imports" not in linted["contracts"][0]
    assert not build_graph("sysbench", cache_dir=None).find_modules_that_directly_import("sysbench")


ENDS_A_PROCESS = re.compile(r"\b(sys\.exit|os\._exit)\(")
ENDS_A_COMMAND = re.compile(r"\braise (typer\.Exit|SystemExit)\b")


def test_the_door_exits_and_commands_choose_its_code() -> None:
    package = ROOT / "sysbench"
    sources = {path.relative_to(package): path.read_text() for path in package.rglob("*.py")}
    ending = {path.as_posix() for path, text in sources.items() if ENDS_A_PROCESS.search(text)}
    assert {path for path in ending if not path.startswith("worker/")} == {
        "__main__.py",
        "cli.py",
        "engine/parallel/__main__.py",
        "lab/workload/imports.py",  # a process that the user's code has forked
    }
    choosing = {path.parts[0] for path, text in sources.items() if ENDS_A_COMMAND.search(text)}
    assert choosing == {"cli.py", "commands"}


def test_torch_stays_out_of_what_does_not_measure() -> None:
    expected = [
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
    ]
    program = [sys.executable, "-W", "ignore", "-c", WITHOUT_TORCH, json.dumps([words for words, _ in expected])]
    ran = subprocess.run(program, capture_output=True, text=True, check=True)
    assert [json.loads(line) for line in ran.stdout.splitlines()] == [list(each) for each in expected], ran.stderr
