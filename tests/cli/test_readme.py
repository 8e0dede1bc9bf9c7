"""What the README shows can be typed."""

import re
import shlex
from pathlib import Path

import pytest

from tests.cli.running import sysbench

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
SHOWN = set(re.findall(r"`sysbench ([a-z]+ [^`]+)`", README))
COMMANDS = sorted(words for words in SHOWN if not re.search("…|--from", words))


@pytest.mark.parametrize("words", COMMANDS)
def test_every_command_is_one_that_can_be_given(words: str) -> None:
    planned = words if "--plan" in words or "--help" in words else f"{words} --plan"
    ran = sysbench(*shlex.split(planned))
    assert ran.code == 0, ran.err
    assert ran.out


def test_the_two_commands_install_what_they_need_themselves() -> None:
    assert "\npip install uv && uv run sysbench time --size small --ctx 128\n" in README
    assert "\npip install uv && uv run pytest -n logical --maxprocesses 4\n" in README


def test_every_option_that_it_mentions_exists() -> None:
    golden = (ROOT / "tests" / "golden").glob("*-options.txt")
    options = {word for path in golden for word in path.read_text().split()} | {"--maxprocesses"}
    mentioned = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", README))
    assert mentioned - options == {"--help"}


def test_every_file_that_it_links_to_is_there() -> None:
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
