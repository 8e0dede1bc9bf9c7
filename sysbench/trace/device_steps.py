"""Beginning of each step on the device, which may still be busy with earlier work when the host begins the step."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from sysbench.trace.columns import distinct_rows, sum_by_group
from sysbench.trace.recording import NONE, Integers

NEVER: Final = np.iinfo(np.int64).min
_LATEST: Final = np.iinfo(np.int64).max


class DeviceSteps:
    """When the device is done with what came before each step. Work is added piece by piece."""

    def __init__(self, step_start_ns: Integers) -> None:
        self._step_start_ns = step_start_ns
        self._earlier_end_ns = np.full(len(step_start_ns) + 1, NEVER, np.int64)
        """Latest end of work launched between the previous step's start and the start of each step."""
        self._places: list[tuple[Integers, Integers, Integers]] = []
        """Device, stream and step of pieces of work, with the start of the first and the total time of all."""

    def add(
        self,
        launched_ns: Integers,
        start_ns: Integers,
        end_ns: Integers,
        device: Integers,
        stream: Integers,
        step: Integers,
        is_backlog: NDArray[np.bool_],
    ) -> None:
        """Add work; `step` is NONE for work that belongs to no step."""
        launched_ns = np.where(is_backlog, NEVER, launched_ns)
        following = np.searchsorted(self._step_start_ns, launched_ns, side="right")
        np.maximum.at(self._earlier_end_ns, following, end_ns)
        own = np.flatnonzero(step != NONE)
        places, which = distinct_rows([device[own], stream[own], step[own]])
        first_ns, total_ns = np.full(len(places) + 1, _LATEST, np.int64), np.zeros(len(places) + 1, np.int64)
        np.minimum.at(first_ns, which, start_ns[own])
        np.add.at(total_ns, which, (end_ns - start_ns)[own])
        self._places.append((places, first_ns[: len(places)], total_ns[: len(places)]))

    def ready_ns(self) -> Integers:
        """Return, for each step, when all work launched before the step has ended; NEVER if there is none.

        Work on other streams may outlast this: at the latest, the device is ready when it begins the first work of the
        step on the stream that has most of the work.
        """
        done_ns: Integers = np.maximum.accumulate(self._earlier_end_ns)[:-1]
        if not self._places:
            return done_ns
        places, first_ns, total_ns = map(np.concatenate, zip(*self._places, strict=True))
        streams, stream = distinct_rows([places[:, 0], places[:, 1]])
        if not len(streams):
            return done_ns
        on_main = np.flatnonzero(stream == np.argmax(sum_by_group(total_ns, stream, len(streams))))
        np.minimum.at(done_ns, places[on_main, 2], first_ns[on_main])
        return done_ns
