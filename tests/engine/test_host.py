from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import psutil
import pytest

from sysbench.engine.sensors import host
from sysbench.engine.sensors.host import commit_of, cpu_name, host_info, in_container

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


def git(directory: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=directory, env=environment, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A package in a git checkout of its own, all committed."""
    package = tmp_path / "checkout" / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package.parent / "README.md").write_text("read me\n")
    git(package, "init", "-q", "..")
    git(package.parent, "add", ".")
    git(package, "commit", "-q", "-m", "first")
    return package


def test_the_host_is_described() -> None:
    info = host_info()
    assert info.hostname == platform.node()
    assert info.python == platform.python_version()
    assert info.cpu
    assert info.logical_cores == os.cpu_count()
    assert info.physical_cores is None or 1 <= info.physical_cores <= info.logical_cores
    assert 0 < info.memory_bytes <= psutil.virtual_memory().total


def test_a_host_that_tells_nothing_is_described_all_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def silent(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr(psutil, "virtual_memory", silent)
    monkeypatch.setattr(psutil, "cpu_count", silent)
    monkeypatch.setenv("PATH", str(tmp_path))
    info = host_info()
    assert (info.physical_cores, info.memory_bytes, info.commit) == (None, 0, None)


@needs_git
def test_a_checkout_names_its_commit(package: Path) -> None:
    head = git(package, "rev-parse", "HEAD")
    assert commit_of(package) == head
    (package / "scratch.py").write_text("not part of it\n")
    assert commit_of(package) == head
    (package.parent / "README.md").write_text("changed\n")
    assert commit_of(package) == head + "-dirty"


@needs_git
def test_a_change_that_is_staged_is_a_change(package: Path) -> None:
    (package / "new.py").write_text("new\n")
    git(package, "add", "new.py")
    assert commit_of(package) == git(package, "rev-parse", "HEAD") + "-dirty"


@needs_git
def test_somebody_elses_checkout_around_an_installed_package_is_not_ours(package: Path) -> None:
    """A virtual environment in a project: the project's commit says nothing of the package."""
    installed = package.parent / ".venv" / "package"
    shutil.copytree(package, installed)
    assert commit_of(package) is not None
    assert commit_of(installed) is None


@needs_git
def test_a_checkout_without_a_commit_has_none(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text("")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    assert commit_of(tmp_path / "package") is None
    assert commit_of(tmp_path) is None


@needs_git
def test_a_run_from_a_git_hook_names_its_own_commit(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(tmp_path, "init", "-q", "elsewhere")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere" / ".git"))
    assert commit_of(package) == git(package, "rev-parse", "HEAD")


@needs_git
def test_a_checkout_is_only_looked_at(package: Path) -> None:
    """Left to itself, git's status would refresh the index under somebody who is about to use it."""
    os.utime(package / "__init__.py", (1_000_000_000, 1_000_000_000))
    index = package.parent / ".git" / "index"
    before = index.read_bytes()
    assert commit_of(package) == git(package, "rev-parse", "HEAD")
    assert index.read_bytes() == before
    index.with_name("index.lock").touch()
    assert commit_of(package) == git(package, "rev-parse", "HEAD")


def test_a_directory_outside_any_checkout_has_no_commit(tmp_path: Path) -> None:
    assert commit_of(tmp_path) is None


@pytest.mark.parametrize("script", [None, "sleep 30", "exit 128"], ids=["missing", "hanging", "refusing"])
def test_git_that_does_not_answer_costs_only_the_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None
) -> None:
    monkeypatch.setattr(host, "COMMAND_TIMEOUT_S", 0.1)
    (tmp_path / ".git").mkdir()
    (tmp_path / "package").mkdir()
    binaries = tmp_path / "bin"
    binaries.mkdir()
    if script is not None:
        (binaries / "git").write_text(f"#!/bin/sh\nexec {script}\n" if "sleep" in script else f"#!/bin/sh\n{script}\n")
        (binaries / "git").chmod(0o755)
        (binaries / "sleep").symlink_to(shutil.which("sleep") or "/bin/sleep")
    monkeypatch.setenv("PATH", str(binaries))
    assert commit_of(tmp_path / "package") is None


def root_with(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    return root


def test_the_processor_is_named_by_its_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    core = "processor\t: {}\nvendor_id\t: GenuineIntel\nmodel name\t: Intel(R) Xeon(R) Platinum 8480C\nflags\t: fpu\n\n"
    root = root_with(tmp_path, {"proc/cpuinfo": core.format(0) + core.format(1)})
    assert cpu_name(root) == "Intel(R) Xeon(R) Platinum 8480C"


def test_an_arm_processor_is_named_by_its_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    core = "processor\t: 0\nBogoMIPS\t: 2000.00\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n\n"
    assert cpu_name(root_with(tmp_path, {"proc/cpuinfo": core})) == "aarch64, implementer 0x41, part 0xd4f"


def test_a_processor_that_is_not_described_still_has_a_name(tmp_path: Path) -> None:
    assert cpu_name(tmp_path)


@pytest.mark.parametrize(
    ("files", "environment", "expected"),
    [
        ({".dockerenv": ""}, {}, True),
        ({"run/.containerenv": "engine=podman"}, {}, True),
        ({".dockerenv": ""}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, True),
        ({}, {"APPTAINER_CONTAINER": "/a.sif"}, True),
        ({}, {"container": "systemd-nspawn"}, True),
        ({"run/systemd/container": ""}, {}, True),
        ({}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, True),
        ({}, {}, False),
    ],
)
def test_a_container_is_told_by_its_marks(
    tmp_path: Path, files: dict[str, str], environment: dict[str, str], expected: bool
) -> None:
    assert in_container(root_with(tmp_path, files), environment) == expected
