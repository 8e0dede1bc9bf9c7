"""What the README and the pages beside it show can be typed."""

import re
import shlex
import shutil
from pathlib import Path
from typing import get_args

import pytest

from sysbench.outcomes import CautionCode
from tests.cli.running import sysbench
from tests.gpu.evidence.session import parser as evidence_parser

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PAGES = {page.name: page.read_text() for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
QUOTED = re.compile(r"`sysbench ([a-z]+ [^`]+)`|^\$ sysbench (.+)$", re.MULTILINE)
SHOWN = {quoted or typed for text in PAGES.values() for quoted, typed in QUOTED.findall(text)}
COMMANDS = sorted(words for words in SHOWN if not re.search(r"…|--from|\b(DIR|NAME|FILE)\b", words))
READING = ("report", "compare latest", "compare before", "doctor", "time --size tiny --ctx 64")
"""Commands that measure nothing, or little: these run to their end."""


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which two runs have been made, one before a change and one after it."""
    directory = tmp_path_factory.mktemp("measured")
    tiny = "time --d-model 32 --d-ff 64 --layers 1 --heads 2 --ctx 16 --steps 3 --warmup 1 --device cpu --quiet"
    for when in ("before", "after"):
        ran = sysbench(*tiny.split(), cwd=directory)
        assert ran.code == 0, ran.err
        newest = max((directory / "runs").glob("*.jsonl"))
        (directory / when).mkdir()
        shutil.copy(newest, directory / when)
    return directory


@pytest.mark.parametrize("words", [words for words in COMMANDS if words.startswith(READING)])
def test_every_command_that_measures_nothing_runs_to_its_end(words: str, measured: Path) -> None:
    ran = sysbench(*shlex.split(words), cwd=measured)
    assert ran.code in ((0, 3) if "--gate" in words else (0,)), ran.err
    assert ran.out or "-o" in words


@pytest.mark.parametrize("words", [words for words in COMMANDS if not words.startswith(READING)])
def test_every_command_that_measures_is_one_that_can_be_given(words: str) -> None:
    planned = words if "--plan" in words or "--help" in words else f"{words} --plan"
    ran = sysbench(*shlex.split(planned))
    assert ran.code == 0, ran.err
    assert ran.out


def test_the_two_commands_install_what_they_need_themselves() -> None:
    assert "\npip install uv && uv run sysbench time --size small --ctx 128\n" in README
    assert "\npip install uv && uv run pytest -n logical --maxprocesses 4 --dist worksteal\n" in README


@pytest.mark.parametrize("page", PAGES)
def test_every_option_that_it_mentions_exists(page: str) -> None:
    golden = (ROOT / "tests" / "golden").glob("*-options.txt")
    options = {word for path in golden for word in path.read_text().split()} | {"--maxprocesses", "--dist", "--help"}
    options |= set(evidence_parser()._option_string_actions)
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", PAGES[page])) - options == set()


@pytest.mark.parametrize("page", PAGES)
def test_every_file_that_it_links_to_is_there(page: str) -> None:
    folder = ROOT if page == "README.md" else ROOT / "docs"
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", PAGES[page]):
        assert (folder / target).exists(), target


def test_every_caution_is_explained() -> None:
    explained = set(re.findall(r"`([a-z-]+)`", PAGES["cautions.md"]))
    assert set(get_args(CautionCode)) - explained == set()
