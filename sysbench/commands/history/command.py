"""`sysbench history`: find earlier runs, then list, show or remove them."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from sysbench.commands import showing
from sysbench.commands.history.spec import HistorySpec
from sysbench.errors import LogError, UsageError
from sysbench.spec.command_options import Given, command_options, validated

if TYPE_CHECKING:
    from sysbench.commands.history.earlier_runs import EarlierRun


@command_options(HistorySpec)
def history(given: Given) -> None:
    """List earlier runs, show one, or remove old ones.

    Runs are listed newest first, with their command, spec, outcome and the size of their files.
    """
    spec = validated(HistorySpec, given)
    from sysbench.commands.history import earlier_runs, tables
    from sysbench.log import storage

    if spec.name is not None:
        showing.show_sheet(tables.run_details(earlier_runs.find_run(spec.name, spec.runs)), spec)
        return
    if not (storage.exists(spec.runs) and spec.runs.is_dir()):
        raise LogError(f"no directory {spec.runs} here: name another one with --runs")
    all_runs = earlier_runs.list_runs(spec.runs)
    if spec.clean_s is None:
        showing.show_sheet(tables.run_list(all_runs, f"runs in {spec.runs}"), spec)
        return
    old = [each for each in all_runs if time.time() - each.last_active_s > spec.clean_s and each.removable]
    if not old:
        print(f"none of {len(all_runs)} runs is old enough to be removed", file=sys.stderr)  # noqa: T201
        return
    showing.show_sheet(tables.run_list(old, "to be removed"), spec)
    if _user_confirms(spec, old):
        for each in old:
            each.remove()
        print(f"removed {len(old)} of {len(all_runs)} runs", file=sys.stderr)  # noqa: T201


def _user_confirms(spec: HistorySpec, old: Sequence[EarlierRun]) -> bool:
    if spec.yes:
        return True
    if not sys.stdin.isatty():
        raise UsageError("--clean asks before it removes runs, but there is no terminal to ask on: add --yes")
    return typer.confirm(f"Remove {'this run' if len(old) == 1 else f'these {len(old)} runs'}?", err=True)
