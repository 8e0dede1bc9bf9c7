"""`sysbench history`: find earlier runs, then list or show them."""

from __future__ import annotations

from sysbench.commands import showing
from sysbench.commands.history.spec import HistorySpec
from sysbench.errors import LogError
from sysbench.spec.command_options import Given, command_options, validated


@command_options(HistorySpec)
def history(given: Given) -> None:
    """List earlier runs, or show one.

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
    showing.show_sheet(tables.run_list(earlier_runs.list_runs(spec.runs), spec.runs), spec)
