"""The list of known GPUs, against their files."""

import csv
import io
import tomllib
from pathlib import Path

import pytest

from tests.cli.running import answered

FILES = sorted((Path(__file__).parents[3] / "profiles" / "hardware").glob("*.toml"))


def rows(*words: str, **environment: str) -> list[dict[str, str]]:
    ran = answered("gpus", *words, "--format", "csv", **environment)
    assert (ran.code, ran.err) == (0, "")
    return list(csv.DictReader(io.StringIO(ran.out)))


def test_every_file_is_a_row_with_its_memory_peak_and_rate() -> None:
    found = {row["gpu"]: row for row in rows()}
    assert list(found) == sorted(file.stem for file in FILES)
    for file in FILES:
        sheet, row = tomllib.loads(file.read_text()), found[file.stem]
        assert float(row["memory_bytes"]) == sheet["memory_bytes"]
        peaks = sheet["peak_flops_per_s"]
        assert float(row["peak_half_flops_per_s"]) == peaks.get("bf16", peaks["fp16"])
        assert float(row["rate_flops_per_s"]) == sheet["rates"]["matmul_half"]["value"]
        assert row["rate_basis"] == sheet["rates"]["matmul_half"]["basis"]
        assert row["source"] == sheet["source"]


@pytest.mark.parametrize("file", [*FILES[::6], FILES[0].with_name("t4.toml")], ids=lambda file: file.stem)
def test_one_gpu_is_shown_with_the_source_of_every_number(file: Path) -> None:
    sheet = tomllib.loads(file.read_text())
    found = {row["number"]: row for row in rows(file.stem)}
    for name, rate in sheet["rates"].items():
        shown = found[name]
        assert (float(shown["value"]), shown["basis"], shown["source"]) == (
            rate["value"],
            rate["basis"],
            rate["source"],
        )
    if "context" in sheet:
        assert float(found["context, least"]["value"]) == sheet["context"]["low_bytes"]
        assert found["context, most"]["source"] == sheet["context"]["source"]
    for precision, flops_per_s in sheet["peak_flops_per_s"].items():
        assert float(found[f"peak {precision}"]["value"]) == flops_per_s
        assert found[f"peak {precision}"]["source"] == sheet["source"]


def test_a_calibrated_gpu_is_listed_too_and_its_file_comes_before_the_built_in_one(tmp_path: Path) -> None:
    own = tmp_path / "sysbench" / "hardware"
    own.mkdir(parents=True)
    (own / "mine.toml").write_text('title = "Mine"\nmemory_bytes = 1_000_000\n')
    (own / "t4.toml").write_text('title = "My T4"\nmemory_bytes = 2_000_000\n')
    (own / "host.toml").write_text('title = "My CPU"\nmemory_bytes = 3_000_000\nsynchronous = true\n')
    found = {row["gpu"]: row for row in rows(XDG_CONFIG_HOME=str(tmp_path))}
    assert len(found) == len(FILES) + 2
    assert (found["mine"]["memory_bytes"], found["t4"]["title"]) == ("1000000", "My T4")
    shown = answered("gpus", "mine", XDG_CONFIG_HOME=str(tmp_path)).out
    assert "no rates are known" in shown
    all_shown = answered("gpus", XDG_CONFIG_HOME=str(tmp_path)).out
    assert f"{len(FILES) + 1} known GPUs · 1 calibrated CPU" in all_shown


def test_an_unknown_gpu_is_refused_with_the_nearest_name() -> None:
    ran = answered("gpus", "h101")
    assert (ran.code, ran.out) == (2, "")
    assert "Did you mean h100?" in ran.complaint
