"""The two specs of `sysbench compare --ab`: a command's words each, read as the command itself reads them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import typer

from sysbench.cli.options import Given, command_options, validated
from sysbench.engine.round_logs import ARMS, Arm
from sysbench.errors import UsageError, unknown
from sysbench.specs.attention import AttentionSpec
from sysbench.specs.kinds import Spec
from sysbench.specs.time import TimeSpec

SPECS: Mapping[str, type[TimeSpec] | type[AttentionSpec]] = {"time": TimeSpec, "attention": AttentionSpec}
"""What can be measured in turns: what is timed, and is no profile."""

USUAL = "time"


def arms_of(texts: tuple[str, str]) -> dict[Arm, Spec]:
    """Both specs; raises UsageError with one line that names the arm and what is wrong with it."""
    specs: dict[Arm, Spec] = {}
    for arm, text in zip(ARMS, texts, strict=True):
        try:
            specs[arm] = spec_of_words(text)
        except UsageError as error:
            raise UsageError(f"--ab, {arm}: {error}") from None
    if specs["A"].kind != specs["B"].kind:
        raise UsageError(f"--ab: A is of `sysbench {specs['A'].kind}` and B of `sysbench {specs['B'].kind}`")
    return specs


def spec_of_words(text: str) -> TimeSpec | AttentionSpec:
    """The spec that `time --size small --compile` asks for; `time` and `sysbench` in front may be left out.

    Raises UsageError, with the same words as the command.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{text} cannot be taken apart into words: {str(error).lower()}") from None
    if words and words[0] == "sysbench":
        words = words[1:]
    name = words.pop(0) if words and not words[0].startswith("-") else USUAL
    if name not in SPECS:
        raise UsageError(unknown(name, "a command that can be measured in turns", SPECS))
    return validated(SPECS[name], _given(name, words))


def _given(name: str, words: list[str]) -> Given:
    """The options among the words of one command."""
    found: list[Given] = []

    @command_options(SPECS[name])
    def command(given: Given) -> None:
        found.append(given)

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, context_settings={"help_option_names": []})
    app.command(name)(command)
    try:
        typer.main.get_command(app).main(words, prog_name=name, standalone_mode=False)
    except Exception as error:
        # Typer raises usage errors of its own, or those of click, depending on its version; both can format themselves.
        format_message: Any = getattr(error, "format_message", None)
        if not callable(format_message):
            raise
        raise UsageError(" ".join(str(format_message()).split())) from None
    return found[0]
