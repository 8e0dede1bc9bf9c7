"""Findings of a loop."""

from __future__ import annotations

from collections.abc import Iterator

from sysbench import units
from sysbench.commands.loop.record import LoopRecord
from sysbench.commands.loop.spec import STEP
from sysbench.render.findings import Statement, exclusions, reliable

NOTABLE = 0.05
"""Smallest share of the step outside all phases that is reported."""


def of_run(record: LoopRecord) -> Iterator[Statement]:
    for cell in reliable(record.cells):
        whole = cell.phases[STEP].times if cell.phases else None
        if whole is None:
            continue
        total_s = sum(whole.samples_s)
        shares = {name: sum(each.times.samples_s) / total_s for name, each in cell.phases.items() if each.times}
        del shares[STEP]
        if len(shares) > 1:
            longest = max(shares, key=lambda name: shares[name])
            yield Statement(f"a step of {cell.cell.name} spends {units.share(shares[longest])} in {longest}.", (cell,))
        if cell.outside is not None and (rest := sum(cell.outside.samples_s) / total_s) > NOTABLE:
            yield Statement(f"a step of {cell.cell.name} spends {units.share(rest)} outside its phases.", (cell,))
    yield from exclusions(record.cells)
