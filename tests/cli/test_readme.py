"""What the README and the pages beside it show can be typed."""

import re
import shlex
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

from sysbench.command import kinds
from sysbench.commands.compare.ab import parse_arms
from sysbench.commands.run import prediction
from sysbench.commands.time.spec import TimeSpec
from sysbench.engine import supervisor
from sysbench.log.outcomes import CautionCode
from tests import fixtures_timing
from tests.cli.option_reference import parameters, reference
from tests.cli.running import answered, sysbench
from tests.gpu.evidence.session import parser as evidence_parser

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PAGES = {"../README.md": README, **{page.name: page.read_text() for page in sorted((ROOT / "docs").glob("*.md"))}}
"""All pages by their path from `docs`."""
QUOTED = re.compile(r"`sysbench ([a-z]+ [^`]+)`|^\$ sysbench (.+)$", re.MULTILINE)
SHOWN = {quoted or typed for text in PAGES.values() for quoted, typed in QUOTED.findall(text)}
# What needs files of its own, as models do, is run by the tests of that page.
COMMANDS = sorted(words for words in SHOWN if not re.search(r"^check |…|--from|--model |\b(DIR|NAME|FILE)\b", words))
READING = ("report", "compare latest", "compare before", "gpus", "models")
QUICK = ("doctor", "time --size tiny --ctx 64")
what_is_here = cache(supervisor.list_devices)


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """A directory in which two runs have been made, one before a change and one after it."""
    for day, when in ((19, "before"), (20, "after")):
        record = fixtures_timing.record(TimeSpec(size="small", ctx="128,256", steps="20"), seed=day)
        for directory in (tmp_path / when, tmp_path / "runs"):
            directory.mkdir(exist_ok=True)
            (directory / f"2026-11-{day}T10-00-00-time.json").write_text(record.model_dump_json())
    return tmp_path


@pytest.mark.parametrize("words", [words for words in COMMANDS if words.startswith(READING)])
def test_every_command_that_reads_runs_to_its_end(words: str, measured: Path) -> None:
    by_sysbench, *_ = words.split(" > ")  # the rest is the shell's
    ran = answered(*shlex.split(by_sysbench), cwd=measured)
    assert ran.code in ((0, 3) if "--gate" in words else (0,)), ran.err
    assert ran.out or "-o" in words


@pytest.mark.parametrize("words", [words for words in COMMANDS if words.startswith(QUICK)])
def test_every_command_that_takes_seconds_runs_to_its_end(words: str, tmp_path: Path) -> None:
    ran = sysbench(*shlex.split(words), cwd=tmp_path)
    assert ran.code == 0, ran.err
    assert ran.out


@pytest.mark.parametrize("words", [words for words in COMMANDS if not words.startswith((*READING, *QUICK))])
def test_every_command_that_measures_is_one_that_can_be_given(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if "--ab" in words:
        first, second = shlex.split(words)[-2:]
        assert parse_arms((first, second))["B"].kind in kinds()
        return
    planned = words if "--plan" in words or "--help" in words else f"{words} --plan"
    # `run` asks a worker what there is to measure on, and one answer is good for all.
    monkeypatch.setattr(supervisor, "list_devices", what_is_here)
    monkeypatch.setattr(
        prediction, "predict_durations_s", lambda *_, **__: ({}, ())
    )  # of a whole experiment takes minutes
    ran = answered(*shlex.split(planned))
    assert ran.code == 0, ran.err
    assert ran.out


def test_the_two_commands_install_what_they_need_themselves() -> None:
    assert "\npip install uv && uv run sysbench time --size small --ctx 128\n" in README
    assert "\npip install uv && uv run pytest -n auto --maxprocesses 4 --dist worksteal\n" in README


@pytest.mark.parametrize("page", sorted(PAGES.keys() - {"options.md"}))
def test_every_option_that_it_mentions_exists(page: str) -> None:
    options = {flag for _, parameter in parameters() for flag in parameter.opts} | {
        "--maxprocesses",
        "--dist",
        "--help",
    }
    options |= set(evidence_parser()._option_string_actions)
    options |= {"--reference", "--markdown"}  # of tests.bench.prediction
    options |= {"--knobs", "--odd"}  # of tests.bench.fake_gpu_memory
    options |= {"--install-completion"}  # Typer's
    options |= {"--sysbench-record"}  # of sysbench.pytest_plugin
    options |= {"--extra", "--inexact"}  # of uv sync
    options |= {
        "--nnodes",
        "--node-rank",
        "--nproc-per-node",
        "--master-addr",
        "--master-port",
        "--ntasks",
    }  # launchers'
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", PAGES[page])) - options == set()


@pytest.mark.parametrize("page", PAGES)
def test_every_file_that_it_links_to_is_there(page: str) -> None:
    folder = (ROOT / "docs" / page).parent
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", PAGES[page]):
        assert (folder / target).exists(), target


def test_the_page_of_options_is_what_the_command_line_has() -> None:
    """So a new option, or another meaning of one, is seen in review."""
    assert PAGES["options.md"] == reference()
    assert [parameter.name for _, parameter in parameters() if not parameter.help] == []


def test_every_caution_is_explained() -> None:
    explained = set(re.findall(r"`([a-z-]+)`", PAGES["cautions.md"]))
    assert set(get_args(CautionCode)) - explained == set()
