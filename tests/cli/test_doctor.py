"""The doctor as a process, on this machine and on broken ones."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from sysbench.commands.doctor.record import DoctorRecord
from tests.cli.running import answered, command, environment, ran_once, sysbench
from tests.processes import HANG_S


def script(directory: Path, name: str, text: str) -> None:
    directory.mkdir(exist_ok=True)
    path = directory / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> DoctorRecord:
    """This machine with an nsys that fails, no compiler, a typo for the allocator, and a GPU that nobody has."""
    programs = tmp_path_factory.mktemp("programs")
    script(programs, "nsys", "echo cannot find the importer >&2; exit 1")
    ran, _ = ran_once(
        tmp_path_factory,
        "doctor-of-a-broken-machine",
        "doctor",
        "--json",
        PATH=str(programs),
        PYTORCH_CUDA_ALLOC_CONF="expandible_segments:True",
        CUDA_VISIBLE_DEVICES="GPU-nonsense,\x1b[31m",
        KUBERNETES_SERVICE_HOST="10.0.0.1",
    )
    assert ran.code == 0, ran.err
    assert ran.err == ""
    return DoctorRecord.model_validate_json(ran.out)


def test_json_is_the_documented_record_and_nothing_else(broken: DoctorRecord) -> None:
    assert broken.kind == "doctor"
    assert broken.torch.version is not None
    assert broken.torch.devices[-1].type == "cpu"
    assert broken.host.system is not None
    assert broken.host.system.container


def test_broken_tools_are_told_and_their_options_do_not_work(broken: DoctorRecord) -> None:
    assert broken.tools.nsys.problem == "nsys exited with 1: cannot find the importer"
    assert broken.tools.cxx_compiler.path is None
    works = {each.what: each.works for each in broken.prospects}
    assert works["--compile"] == "no"
    assert works["profile --with nsys"] == "no"
    assert works["--simulate GPU"] == "no"


def test_a_typo_in_the_allocators_settings_is_named_with_the_nearest(broken: DoctorRecord) -> None:
    assert broken.tools.allocator_problem is not None
    assert "Did you mean expandable_segments?" in broken.tools.allocator_problem
    assert any("expandible_segments" in each.message for each in broken.advice)


def test_a_torch_that_cannot_be_imported_leaves_the_rest_of_the_screen(tmp_path: Path) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('libcudart.so.13: cannot open shared object file')\n")
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    ran = sysbench("doctor", PYTHONPATH=paths, COLUMNS="200")
    assert ran.code == 1
    assert ran.err == ""
    assert "torch cannot be imported: ImportError: libcudart.so.13" in ran.out
    for part in ("machine", "logical cores", "tools", "what works here", "--simulate GPU"):
        assert part in ran.out, part


def test_a_torch_that_kills_its_process_is_no_crash_of_ours(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGABRT)\n")
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    ran = sysbench("doctor", "--json", PYTHONPATH=paths)
    assert ran.code == 1
    assert "SIGABRT" in json.loads(ran.out)["torch"]["unknown"]["everything"]


def test_a_torch_whose_bytecode_is_not_kept_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("__version__ = '2.13.0'\n")
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    ran = sysbench("doctor", "--json", PYTHONPATH=paths, PYTHONDONTWRITEBYTECODE="1")
    assert json.loads(ran.out)["torch"]["bytecode_kept"] is False


def test_a_reader_that_goes_away_ends_the_output_and_nothing_else() -> None:
    begun = subprocess.Popen(
        command("doctor"), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert begun.stdout is not None
    assert begun.stderr is not None
    begun.stdout.readline()
    begun.stdout.close()
    with begun.stderr as complaints:
        assert complaints.read() == ""
    assert begun.wait(HANG_S) == 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--jsn"], "No such option: --jsn"),
    ],
)
def test_a_mistake_is_answered_before_anything_is_asked(arguments: list[str], complaint: str) -> None:
    ran = answered("doctor", *arguments)
    assert ran.code == 2
    assert ran.complaint.startswith(f"sysbench doctor: {complaint}")
