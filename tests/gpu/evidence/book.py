"""`evidence.json`: the machine, every part with what it found, and all promises in one list."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.gpu.evidence.work import write_whole

SCHEMA = 1
FILE = "evidence.json"
SAME = ("gpu", "torch", "python")
"""Facts about the machine that all parts share. Its driver and the commit stand beside each part: a patch level may
differ from one lent machine to the next, and what one call shows is mended before the next."""
FINISHED = ("done", "failed")
"""Outcomes after which a part is not run again unless it is asked for: it came to its end."""


class AnotherMachineError(Exception):
    """The directory holds what was seen elsewhere, or with other versions, or in rehearsal."""


@dataclass
class Book:
    """What is written, and rewritten whole after each part."""

    directory: Path
    machine: dict[str, Any]
    rehearsal: bool
    started_at: str
    command: str
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By name, in the order in which they were finished."""

    @property
    def path(self) -> Path:
        """The file."""
        return self.directory / FILE

    def take_up(self) -> None:
        """Go on from what an earlier run left here; raises AnotherMachineError for what cannot be one with this."""
        if not self.path.exists():
            return
        earlier = json.loads(self.path.read_text())
        differing = [name for name in SAME if earlier["machine"].get(name) != self.machine.get(name)]
        if earlier["rehearsal"] != self.rehearsal:
            differing.append("rehearsal")
        if earlier["schema"] != SCHEMA:
            differing.append("schema")
        if differing:
            raise AnotherMachineError(
                f"{self.path} was made with another {', '.join(differing)}: give another --out, or remove it"
            )
        self.started_at = earlier["started_at"]
        self.parts = {part["name"]: part for part in earlier["parts"]}

    def finished(self) -> set[str]:
        """Parts that came to their end."""
        return {name for name, part in self.parts.items() if part["outcome"] in FINISHED}

    def add(self, part: dict[str, Any], at: str) -> None:
        """Take in what a part found, in place of what it found before, and write everything."""
        seen_with = {name: self.machine.get(name) for name in ("driver", "commit")}
        self.parts[part["name"]] = {**part, "at": at, **seen_with}
        self.write(at)

    @property
    def promises(self) -> list[dict[str, Any]]:
        """All of them, each with its part."""
        return [{"part": part["name"], **promise} for part in self.parts.values() for promise in part["promises"]]

    def write(self, at: str) -> None:
        """Put the whole in place of what was there."""
        content = {
            "schema": SCHEMA,
            "rehearsal": self.rehearsal,
            "command": self.command,
            "started_at": self.started_at,
            "finished_at": at,
            "machine": self.machine,
            "promises": self.promises,
            "parts": list(self.parts.values()),
        }
        write_whole(self.path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def tables(parts: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every table of these parts."""
    return [table for part in parts for table in part["tables"] if table["rows"]]
