"""Profiles of real kernels: all of them seen, in their modules, by torch's profiler and by Nsight Systems alike."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.cli.running import record_in, sysbench

pytestmark = [pytest.mark.gpu, pytest.mark.alone]

LAYERS = 24
"""Of the size that is profiled: its steps are so long that the device never waits for its host."""
CELL = ("--size=medium", "--ctx=512", "--batch=4", "--device=cuda", "--quiet")


def profiled(out: Path, *words: str) -> dict[str, Any]:
    ran = sysbench("profile", *CELL, f"--out={out}", *words)
    assert ran.code == 0, ran.err
    (cell,) = record_in(out)["cells"]
    found: dict[str, Any] = cell
    return found


def time_by_class(cell: dict[str, Any]) -> dict[str, int]:
    summary = cell["summary"]
    found: dict[str, int] = {}
    for kernel, total_ns in zip(summary["spent"]["kernel"], summary["spent"]["total_ns"], strict=True):
        kind = summary["names"][kernel]["kernel_class"]
        found[kind] = found.get(kind, 0) + total_ns
    return found


@pytest.fixture(scope="module")
def by_torch(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return profiled(tmp_path_factory.mktemp("torch"), "--mode=train", "--active=2", "--steps=20")


def test_all_products_are_seen_in_forward_and_backward(by_torch: dict[str, Any]) -> None:
    expected = 2 * (9 * LAYERS + 1)
    checks = {check["name"]: (check["found"], check["expected"]) for check in by_torch["summary"]["checks"]}
    assert checks == {
        "matrix products in forward": (expected, expected),
        "matrix products in backward": (2 * expected, 2 * expected),
    }


def test_kernels_cover_the_step(by_torch: dict[str, Any]) -> None:
    assert 0.99 <= by_torch["coverage"] <= 1.1


def test_every_kernel_has_a_launch_and_nearly_all_have_a_class(by_torch: dict[str, Any]) -> None:
    summary = by_torch["summary"]
    assert summary["unlinked_ns"] == 0
    whole = sum(summary["spent"]["total_ns"])
    unplaced = {number for number, name in enumerate(summary["names"]) if not name["placed"]}
    columns = zip(summary["spent"]["kernel"], summary["spent"]["total_ns"], strict=True)
    assert sum(total_ns for kernel, total_ns in columns if kernel in unplaced) < 0.02 * whole


def test_products_in_backward_belong_to_modules(by_torch: dict[str, Any]) -> None:
    summary, spent = by_torch["summary"], by_torch["summary"]["spent"]
    outside = sum(
        calls
        for phase, module, kernel, calls in zip(
            spent["phase"], spent["module"], spent["kernel"], spent["calls"], strict=True
        )
        if summary["phases"][phase] == "backward"
        and not summary["modules"][module]
        and summary["names"][kernel]["kernel_class"] == "matmul"
    )
    assert outside == 0


@pytest.mark.skipif(shutil.which("nsys") is None, reason="Nsight Systems is not installed")
def test_both_profilers_agree(by_torch: dict[str, Any], tmp_path: Path) -> None:
    by_nsys = profiled(tmp_path, "--mode=train", "--active=2", "--steps=0", "--with=nsys")
    here, there = time_by_class(by_torch), time_by_class(by_nsys)
    assert sum(there.values()) == pytest.approx(sum(here.values()), rel=0.05)
    assert there["matmul"] == pytest.approx(here["matmul"], rel=0.05)
    assert sum(by_nsys["summary"]["spent"]["calls"]) == sum(by_torch["summary"]["spent"]["calls"])
