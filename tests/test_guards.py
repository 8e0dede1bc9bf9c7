"""Assertions on simulated memory, as tests of a training program use them."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import sysbench
from tests.cli.running import answered, environment, record_in
from tests.processes import HANG_S

STEP: dict[str, Any] = {"d_model": 64, "d_ff": 128, "layers": 1, "heads": 2, "vocab": 200_000, "ctx": 32, "batch": 2}
WORDS = [f"--{name.replace('_', '-')}={value}" for name, value in STEP.items()]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_step_that_fits_gives_the_run_and_leaves_no_file(tmp_path: Path) -> None:
    run = sysbench.assert_fits(on="24GiB", **STEP)
    assert list(tmp_path.iterdir()) == []
    assert answered("memory", *WORDS, "--simulate=24GiB", "--mode=train", "--out=.").code == 0
    assert run.cells[0].peak_allocated_bytes == record_in(tmp_path)["cells"][0]["peak_allocated_bytes"]


def test_a_step_that_does_not_fit_says_what_is_missing_where_and_why() -> None:
    with pytest.raises(AssertionError) as failure:
        sysbench.assert_fits(on="24GiB,800MiB", **STEP)
    text = str(failure.value)
    assert isinstance(failure.value, sysbench.MemoryAssertionError)
    assert "on 800MiB: does not fit, needs " in text
    assert "of 800.0 MiB" in text
    assert re.search(r"Memory runs out (in|while)", text)
    assert re.search(r"\d+(\.\d+)? MiB of \w+.* from \w+\.py:\d+", text)
    assert "24GiB" not in text


def test_a_peak_is_compared_with_bytes_a_size_and_what_was_recorded(tmp_path: Path) -> None:
    file = tmp_path / "peaks.json"
    (cell,) = sysbench.assert_peak(None, file, on="24GiB", record=True, **STEP).cells
    peak_bytes = cell.peak_allocated_bytes
    for at_most in (peak_bytes, "24GiB", file):
        sysbench.assert_peak(None, at_most, on="24GiB", **STEP)
    most_bytes = peak_bytes - 1
    said = rf"the allocated peak is {peak_bytes:,} bytes, 1 B \(1 bytes\) more than {most_bytes:,} bytes"
    with pytest.raises(sysbench.MemoryAssertionError, match=said):
        sysbench.assert_peak(None, most_bytes, on="24GiB", **STEP)
    sysbench.assert_peak(None, int(peak_bytes / 1.009), on="24GiB", within="1%", **STEP)
    with pytest.raises(sysbench.MemoryAssertionError, match=r"and the 1\.0% above it that are allowed"):
        sysbench.assert_peak(None, int(peak_bytes / 1.011), on="24GiB", within=0.01, **STEP)
    ((name, recorded),) = json.loads(file.read_text()).items()
    assert recorded["allocated_peak_bytes"] == peak_bytes
    file.write_text(json.dumps({name: {"allocated_peak_bytes": peak_bytes - 1, "torch": "0.1"}}))
    with pytest.raises(sysbench.MemoryAssertionError, match=r"recorded with torch 0\.1; this is"):
        sysbench.assert_peak(None, file, on="24GiB", **STEP)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"model": lambda: None}, "at the top level of a file"),
        ({"model": "nowhere.py:Model"}, "there is no file nowhere.py"),
        ({"on": "h10"}, "on= h10 is not a known GPU"),
        ({"simulate": "24GiB"}, "simulate= is called on= here: on='24GiB'"),
        ({"contxt": 3}, "contxt= is not a field of MemorySpec. Did you mean ctx?"),
        ({"at_most": "22"}, "at_most='22' is not a number of bytes, a size such as '22GiB', or a .json file"),
        ({"at_most": True}, "at_most=True"),
        ({"at_most": -1}, "at_most=-1"),
        ({"within": "much"}, "within='much' is not a share from 0 to 1, such as '1%' or 0.01"),
        ({"within": -0.1}, "within=-0.1"),
        ({"within": 1}, "within=1"),
        ({"at_most": "1GiB", "record": True}, "record=True needs a .json file"),
    ],
)
def test_a_mistake_is_one_line(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(sysbench.SysbenchError) as mistake:
        sysbench.assert_peak(**{"at_most": 2**40, "on": "24GiB", "size": "tiny", **arguments})
    assert said in str(mistake.value)
    assert "\n" not in str(mistake.value)


def test_a_file_without_the_peak_says_how_to_record_it(tmp_path: Path) -> None:
    for content, said in (("{}", "has no peak of"), ("[", "is not JSON"), ('{"a": 3}', "does not have recorded peaks")):
        (tmp_path / "peaks.json").write_text(content)
        with pytest.raises(sysbench.SysbenchError, match=said):
            sysbench.assert_peak(None, "peaks.json", on="24GiB", **STEP)
    with pytest.raises(sysbench.SysbenchError, match="To record it: record=True, or pytest --sysbench-record"):
        sysbench.assert_peak(None, "nowhere.json", on="24GiB", **STEP)


MODEL = """
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(100, 32), nn.Linear(32, 100)

    def forward(self, ids):
        return self.head(self.embedding(ids))

def fails():
    raise RuntimeError("the reason in the model")
"""

TEST = """
from model import Model, fails

def test_peak(memory_guard):
    memory_guard.assert_peak(Model, on="24GiB", ctx=16, batch=2)

def test_fails(memory_guard):
    memory_guard.assert_fits(fails, on="24GiB", ctx=16, batch=2)

def test_is_too_large(memory_guard):
    memory_guard.assert_peak(Model, "1KiB", on="24GiB", ctx=16, batch=2)

def test_cannot_be_imported(memory_guard):
    memory_guard.assert_fits(lambda: Model(), on="24GiB")
"""


def test_the_fixture_is_there_without_configuration_and_records_peaks(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "test_memory.py").write_text(TEST)
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--sysbench-record"]
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=HANG_S, check=False)
    assert "3 failed, 1 passed" in done.stdout, done.stdout
    assert "the reason in the model" in done.stdout
    assert "guards.py" not in done.stdout, "only the lines of the test are shown"
    assert "pytest_plugin.py" not in done.stdout
    assert len(json.loads((tmp_path / "test_memory-peaks.json").read_text())) == 1


def test_the_plugin_costs_nothing_at_the_start_of_pytest() -> None:
    code = (
        "import sys, pytest; before = set(sys.modules); import sysbench.pytest_plugin; "
        "print(*sorted(set(sys.modules) - before))"
    )
    imported = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert imported == ["sysbench", "sysbench.pytest_plugin"]
