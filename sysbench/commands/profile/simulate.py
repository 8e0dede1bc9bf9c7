"""A profile of a step on a GPU that need not be there: the trace that a profiler would leave, from its prediction."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

from sysbench.commands.profile.spec import ProfileCell
from sysbench.log.events import Event, StageEntered
from sysbench.log.storage import cannot_write
from sysbench.predict.recording import recording
from sysbench.predict.simulated_step import SimulatedStep
from sysbench.trace import chrome_trace
from sysbench.trace.window import cut, find


def run(cell: ProfileCell, slug: str, artifact: Path) -> Iterator[Event]:
    """Predict the cell's step on that GPU, and leave its trace at `artifact`.

    Raises UnavailableError for what cannot be predicted, DoesNotFitError where memory would run out, and OutputError.
    """
    step = SimulatedStep(cell, slug, cell.host, placed=True, whole=True)
    yield from step.events()
    yield StageEntered(at_s=time.time(), cell=cell.key, stage="writing")
    whole = recording(step.found, artifact.name)
    try:
        chrome_trace.write(artifact, cut(whole, find(whole, None), sys.maxsize), sys.maxsize)
    except OSError as error:
        raise cannot_write(artifact, error) from error
