"""Optional packages: what installs them fits the installation, and is said before anything runs."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from sysbench.extras import install_command
from tests.cli.running import answered

LIBRARIES = ("torchao", "bitsandbytes")

REQUIRED = """Requires-Dist: numpy<3,>=2
Requires-Dist: transformers<6,>=4.56; extra == "hf"
Requires-Dist: peft<1,>=0.17; extra == 'lora'
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a sysbench is installed, in an environment that uv has not made, that is found before the one that runs."""
    place = tmp_path / "sysbench-9.dist-info"
    place.mkdir()
    (place / "METADATA").write_text("Metadata-Version: 2.1\nName: sysbench\nVersion: 9\n" + REQUIRED)
    environment = tmp_path / "clone" / ".venv"
    environment.mkdir(parents=True)
    (environment / "pyvenv.cfg").write_text("version_info = 3.11\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "prefix", str(environment))
    return place


@pytest.mark.parametrize("origin", [{"url": "https://x/y.whl", "archive_info": {}}, None], ids=["wheel", "unknown"])
def test_without_a_clone_the_packages_are_named(installed: Path, origin: object) -> None:
    if origin is not None:
        (installed / "direct_url.json").write_text(json.dumps(origin))
    assert install_command("hf") == "pip install 'transformers<6,>=4.56'"


def test_from_a_clone_its_directory_is_named(installed: Path) -> None:
    origin = {"url": "file:///home/me/my%20clone", "dir_info": {"editable": True}}
    (installed / "direct_url.json").write_text(json.dumps(origin))
    assert install_command("ray") == "pip install -e '/home/me/my clone[ray]'"
    (installed / "direct_url.json").write_text(json.dumps({**origin, "dir_info": {}}))
    assert install_command("ray") == "pip install '/home/me/my clone[ray]'"


def test_in_a_clone_that_uv_runs_uv_installs(installed: Path) -> None:
    clone = installed.parent / "clone"
    (installed / "direct_url.json").write_text(json.dumps({"url": clone.as_uri(), "dir_info": {"editable": True}}))
    (clone / ".venv" / "pyvenv.cfg").write_text("uv = 0.9\n")
    assert install_command("hf") == f"uv pip install -e '{clone}[hf]'"
    (clone / "pyproject.toml").touch()
    assert install_command("hf") == f"uv sync --inexact --extra hf (in {clone})"


@pytest.mark.parametrize(
    ("package", "option", "extra"),
    [
        ("transformers", ("--model", "hf:."), "hf"),
        ("peft", ("--lora", "none,8"), "lora"),
        ("torchao", ("--offload", "none,optimizer"), "torchao"),
        ("torchao", ("--precision", "bf16,fp8"), "torchao"),
        ("torchao", ("--optimizer", "fused,adamw-4bit"), "torchao"),
        ("bitsandbytes", ("--optimizer", "adamw-8bit-paged"), "bitsandbytes"),
        ("bitsandbytes", ("--lora=8", "--quantize=nf4"), "bitsandbytes"),
        ("bitsandbytes", ("--lora=8", "--quantize=int8"), "bitsandbytes"),
    ],
)
def test_a_missing_package_is_said_before_a_worker_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, option: tuple[str, ...], extra: str
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else find(name))
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    monkeypatch.chdir(tmp_path)
    # Without a GPU, `memory` simulates one, for which no optimizer is needed.
    for command in ("time", "profile", *(["memory"] if package not in LIBRARIES else [])):
        ran = answered(command, *option, "--mode", "train", "--ctx", "16", f"--out={tmp_path / 'runs'}")
        assert ran.code == 2
        assert ran.err.splitlines()[-1].endswith(f" needs the package {package}. Install it: {install_command(extra)}")
        assert not (tmp_path / "runs").exists()


def test_a_simulation_needs_no_library_of_optimizers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in LIBRARIES else find(name))
    words = (
        "--size=tiny",
        "--layers=1",
        "--ctx=16",
        "--mode=train",
        "--simulate=h100",
        f"--out={tmp_path}",
        "--no-live",
    )
    ran = answered("memory", *words, "--optimizer=adamw-8bit,adamw-4bit,adamw-8bit-paged")
    assert ran.code == 0
    assert "modelled, not traced" in ran.out
