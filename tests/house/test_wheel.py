"""What an installed package holds."""

import zipfile
from pathlib import Path

from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[2]


def test_the_wheel_holds_every_profile_where_an_installed_package_looks_for_it(tmp_path: Path) -> None:
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if name.endswith(".toml")}
    there = {f"sysbench/{path.relative_to(ROOT).as_posix()}" for path in (ROOT / "profiles").glob("*/*.toml")}
    assert held == there
    assert "sysbench/profiles/runs/quick.toml" in held


def test_the_wheel_holds_every_template_script_and_style_of_the_pages(tmp_path: Path) -> None:
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    pages = (ROOT / "sysbench").rglob("assets/*/*")
    there = {path.relative_to(ROOT).as_posix() for path in pages}
    assert there
    assert there <= held
