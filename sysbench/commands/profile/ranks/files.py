"""Which trace is of which rank, and whether traces are of one run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pydantic import ValidationError

from sysbench.errors import LogError, UsageError
from sysbench.spec.validation import first_fault

if TYPE_CHECKING:
    from sysbench.trace.ranks.reading import RankReading
    from sysbench.trace.ranks.summary import RanksSummary

_IN_NAME: Final = re.compile(r"rank[-_.]?(\d+)", re.IGNORECASE)
"""A rank in the name of a file, for traces that do not contain it."""


def numbered(reading: RankReading, pattern: str | None) -> RankReading:
    """Return the reading with its rank: by `--rank-regex`, otherwise as recorded, otherwise as in the file's name.

    Raises UsageError if the expression finds no rank in the file's name.
    """
    if pattern is None:
        found = _IN_NAME.search(reading.title) if reading.rank is None else None
        return replace(reading, rank=int(found[1])) if found else reading
    found = re.search(pattern, reading.title)
    if found is None:
        raise UsageError(f"--rank-regex {pattern} does not match {reading.title}: it must match the name of every file")
    if not (found[1] or "").isdecimal():
        raise UsageError(f"--rank-regex {pattern} finds {found[1]!r} in {reading.title}, which is not a number")
    return replace(reading, rank=int(found[1]))


def compared(readings: Sequence[RankReading], together: str | None) -> RanksSummary | None:
    """Compare the ranks of a run; None if they are not known, do not communicate, or are not of one run.

    `together` names what says that the traces belong together, such as their directory: rank twice is an error then.
    Raises UsageError for that, and for ranks of runs of different sizes; LogError for impossible times.
    """
    from sysbench.trace.ranks.summarise import summarise

    ranks: dict[int, RankReading] = {}
    for each in readings:
        if each.rank is None:
            return None
        if each.rank in ranks and together is None:
            return None
        if each.rank in ranks:
            raise UsageError(
                f"{together} has two traces of rank {each.rank}, {ranks[each.rank].title} and {each.title}: keep one "
                "per rank, or name the files one by one to see them side by side"
            )
        ranks[each.rank] = each
    sizes = {each.world_size: each for each in readings if each.world_size is not None}
    if len(sizes) > 1:
        told = " and ".join(f"{each.title} of {size}" for size, each in [*sizes.items()][:2])
        raise UsageError(f"the traces are of different runs: {told} ranks")
    try:
        return summarise(ranks) if any(each.collectives for each in readings) else None
    except ValidationError as error:
        titles = ", ".join(each.title for each in ranks.values())
        raise LogError(f"{titles} hold what no run can: {first_fault(error)}") from None
