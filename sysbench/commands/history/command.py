"""`sysbench history`: find earlier runs, then list, show or remove them."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from sysbench.commands import running
from sysbench.commands.history.spec import HistorySpec
from sysbench.errors import LogError, UsageError
from sysbench.spec.command_options import Given, command_options, validated

if TYPE_CHECKING:
    from sysbench.commands.history.earlier import Earlier


@command_options(HistorySpec)
def history(given: Given) -> None:
    """List earlier runs, show one, or remove old ones.

    Runs are listed newest first, with their command, spec, outcome and the size of their files.
    """
    spec = validated(HistorySpec, given)
    from sysbench.commands.history import earlier, tables

    if spec.name is not None:
        running.show_sheet(tables.single(earlier.one(spec.name, spec.runs)), spec)
        return
    if not spec.runs.is_dir():
        raise LogError(f"no directory {spec.runs} here: name another one with --runs")
    every = earlier.earlier(spec.runs)
    if spec.clean_s is None:
        running.show_sheet(tables.listing(every, f"runs in {spec.runs}"), spec)
        return
    old = [each for each in every if time.time() - each.touched_s > spec.clean_s and each.removable]
    if not old:
        print(f"none of {len(every)} runs is old enough to be removed", file=sys.stderr)  # noqa: T201
        return
    running.show_sheet(tables.listing(old, "to be removed"), spec)
    if _agreed(spec, old):
        for each in old:
            each.remove()
        print(f"removed {len(old)} of {len(every)} runs", file=sys.stderr)  # noqa: T201


def _agreed(spec: HistorySpec, old: Sequence[Earlier]) -> bool:
    """Whether the user agrees to the removal; raises UsageError if there is no terminal to ask on."""
    if spec.yes:
        return True
    if not sys.stdin.isatty():
        raise UsageError("--clean asks before it removes runs, but there is no terminal to ask on: add --yes")
    return typer.confirm(f"Remove {'this run' if len(old) == 1 else f'these {len(old)} runs'}?", err=True)
