"""Configs that tests write, and what their readers understand."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path

from sysbench.commands.check import file as files
from sysbench.commands.check.readers import format_of
from sysbench.commands.check.understanding import Format, Settings, Understanding, account


def understood(directory: Path, *texts: str, suffix: str = "yaml") -> Understanding:
    """What the files with these texts say together, in the order in which they are read."""
    understanding = Understanding()
    for number, text in enumerate(texts):
        path = directory / f"{number}.{'json' if text.lstrip().startswith('{') else suffix}"
        path.write_text(textwrap.dedent(text))
        file = files.read(path)
        form, settings = format_of(file), Settings(file)
        form.read(settings, understanding)
        account(form, settings, understanding)
    return understanding


def words(understanding: Understanding) -> Mapping[str, str]:
    return {name: word.value for name, word in understanding.options.items()}


def directions(understanding: Understanding) -> Mapping[str, str]:
    return {each.key: each.direction for each in understanding.unmodelled}


def format_named(name: str) -> Format:
    from sysbench.commands.check.readers import formats

    return next(form for form in formats() if form.name == name)
