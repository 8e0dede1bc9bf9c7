"""Config files that other config files name."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from sysbench.commands.check import file
from sysbench.commands.check.readers import deepspeed as reader
from sysbench.commands.check.readers import shared
from sysbench.commands.check.understanding import CannotTellError, Settings, Understanding, account
from sysbench.errors import Refusal


def deepspeed(settings: Settings, understanding: Understanding, key: str) -> None:
    """Take a DeepSpeed config, if the key has one: in the file itself, or in a file that it names."""
    if any(name.startswith(f"{key}.") for name in settings.file.entries):
        deepspeed_within(settings, understanding, key)
    elif (path := settings.text(key)) is not None:
        deepspeed_file(settings, understanding, key, path)


def deepspeed_file(settings: Settings, understanding: Understanding, key: str, path: str) -> None:
    """Take a DeepSpeed config from the file that a config names, or its stage from the file's name."""
    start = settings.file.path.resolve().parent
    places = [Path(path), *(parent / path for parent in (start, *start.parents))]
    if (found := next((place for place in places if place.is_file()), None)) is not None:
        named = Settings(file.read(found))
        reader.FORMAT.read(named, understanding)
        account(reader.FORMAT, named, understanding)
        return
    stage = re.search(r"(?:zero|z)_?([0-3])", Path(path).name)
    if stage is None:
        raise CannotTellError(Refusal(f"names a file that is not here: {path}", "run where it is", f"{key}:"))
    understanding.assumed.append(f"{path} is not here: taken as ZeRO-{stage[1]}, by its name")
    shared.zero(settings, understanding, key, int(stage[1]))
    if "offload" in Path(path).name:
        understanding.leave_out(settings, key, "less", "its name says that something is kept on the host")


def deepspeed_within(settings: Settings, understanding: Understanding, key: str) -> None:
    """Take a DeepSpeed config that is the value of a key."""
    inside, prefix = settings.file.document[key], f"{key}."
    entries = {
        name.removeprefix(prefix): entry for name, entry in settings.file.entries.items() if name.startswith(prefix)
    }
    named = Settings(replace(settings.file, document=inside, entries=entries))
    reader.FORMAT.read(named, understanding)
    account(reader.FORMAT, named, understanding)
    settings.used.add(key)
