"""A recorder of training steps: categories of allocations, FLOPs, and micro-batches that repeat."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import torch
from torch import Tensor

from sysbench.lab.dispatch import Arguments, Operator, Options
from sysbench.lab.memory.accounting import tensors_in
from sysbench.lab.step import TrainingStep
from sysbench.lab.workload.workload import Workload, adapted_facts_of, facts_of, flops, has_flops
from sysbench.simulate.cuda.reductions import SplitReduction
from sysbench.simulate.origins import Origin, Origins
from sysbench.simulate.platform import Platform
from sysbench.simulate.recorder import Device, Recorder
from sysbench.simulate.recording import Span, StepRecording
from sysbench.simulate.tensors import DeviceObserver, SimulatedDevice
from sysbench.snapshot import Category
from sysbench.spec.model import ModelCell
from sysbench.spec.steps import PROCEDURES, Phase, Protocol

MICRO_BATCH_PHASES: tuple[Phase, ...] = ("forward", "loss", "backward")
"""Phases that run once for each micro-batch."""

RECOMPUTED = "recomputed"
"""Stands for the phase of the FLOPs that activation checkpointing computes again in backward."""

_COMMUNICATION_NAMESPACES = ("c10d", "fsdp")
"""Namespaces of communication operators."""

_Request = tuple[int, int, Origin, Category | None, SplitReduction | None]
_MicroBatch = tuple[list[int], list[_Request]]
"""Events, numbered from the first allocation of the micro-batch, and (size, stream, origin, category, reduction) of
each allocation."""


class StepRecorder(Recorder):
    """A recorder that categorizes the allocations of training steps, and counts the FLOPs that have no formula."""

    def __init__(
        self, platform: Platform, device: Callable[[DeviceObserver], Device], origins: Origins | None, cell: ModelCell
    ) -> None:
        super().__init__(platform, device, origins)
        self._is_own = cell.own is not None
        self._counts_flops = cell.shape_with_formulas is None or cell.repeats_forward
        self._work: Workload | None = None
        self._flops: Counter[tuple[int, str]] = Counter()
        self._repeated_losses: dict[int, list[int]] = {}
        """By the loss of a micro-batch: losses of its repetitions, which were recorded but not run, latest first."""

    def observes(self, func: Operator) -> bool:
        """Return whether the operator may need scratch memory, communicates, or has FLOPs to be counted."""
        counts = self._counts_flops and has_flops(func)
        return super().observes(func) or func.namespace in _COMMUNICATION_NAMESPACES or counts

    def ends(self, func: Operator, arguments: Arguments, options: Options, result: object) -> None:
        """Record scratch memory, mark what the operator communicates, and count its FLOPs."""
        super().ends(func, arguments, options, result)
        if func.namespace in _COMMUNICATION_NAMESPACES:
            # An operator of FSDP2 writes parameters from a collective's buffer.
            for tensor in tensors_in([*arguments, *options.values()]):
                number = self.device.number_of(tensor)
                if number is not None and self._categories.get(number) not in ("parameters", "gradients"):
                    self._categories[number] = "communication"
        if self._work is not None and self._counts_flops and not self.occurrence:
            # Gradients are computed without a graph: operators in backward that record one repeat a part of forward.
            repeats = self.phase == "backward" and torch.is_grad_enabled()
            self._flops[self.step, RECOMPUTED if repeats else self.phase] += flops(func, arguments, options, result)

    def freed(self, number: int) -> None:
        """Record a free. Before the loss of a repeated micro-batch is freed, free the losses of its repetitions."""
        for loss in self._repeated_losses.pop(number, ()):
            super().freed(loss)
        super().freed(number)

    def repeat_micro_batch(self, times: int) -> bool:
        """Record the latest micro-batch `times` more times without running it; return whether this is possible.

        If a micro-batch did exactly the same as the previous one, and only its loss is still allocated, the next one
        would do the same. The last one of a step always runs, because it may exchange gradients, and its output is
        kept. None is skipped on a real device, whose memory is to be measured, or with user code, which may count its
        calls.
        """
        ends = [span.end for span in self._spans if (span.step, span.name) == (self.step, "backward")]
        if times < 1 or len(ends) < 3 or self._is_own or not isinstance(self.device, SimulatedDevice):
            return False
        previous, latest = (self._micro_batch(first, end) for first, end in pairwise(ends[-3:]))
        if previous != latest or not self.device.repeats():
            return False
        events = self._events[ends[-2] : ends[-1]]
        allocated, freed = {event for event in events if event >= 0}, {~event for event in events if event < 0}
        spans = self._spans[-len(MICRO_BATCH_PHASES) :]
        loss_events = self._events[spans[1].first : spans[1].end]
        if not freed < allocated or len(allocated - freed) != 1 or not allocated - freed < set(loss_events):
            return False
        (loss,) = allocated - freed
        self._repeated_losses[loss] = [loss + occurrence * len(allocated) for occurrence in range(times, 0, -1)]
        for occurrence in range(1, times + 1):
            offset = occurrence * len(events)
            self._spans += [span._replace(first=span.first + offset, end=span.end + offset) for span in spans]
            self._append(latest)
        self.device.repeat(times)
        return True

    def _micro_batch(self, first: int, end: int) -> _MicroBatch:
        events = self._events[first:end]
        numbers = [event for event in events if event >= 0]
        sizes, streams, origins = self._sizes, self._streams, self._allocation_origins
        requests = [
            (sizes[n], streams[n], origins[n], self._categories.get(n), self._reductions.get(n)) for n in numbers
        ]
        return [event - numbers[0] if event >= 0 else event + numbers[0] for event in events], requests

    def _append(self, repeated: _MicroBatch) -> None:
        start, (events, requests) = len(self._sizes), repeated
        self._events += [event + start if event >= 0 else event - start for event in events]
        for number, (size_bytes, stream, origin, category, reduction) in enumerate(requests, start):
            self._sizes.append(size_bytes)
            self._streams.append(stream)
            self._allocation_origins.append(origin)
            if category is not None:
                self._categories[number] = category
            if reduction is not None:
                self._reductions[number] = reduction

    @contextmanager
    def tracking_modules(self, step: TrainingStep) -> Iterator[None]:
        """Context manager in which allocations belong to the modules whose code runs."""
        if self._origins is None or step.cell.is_compiled:  # the compiler would compile the hooks of modules, too
            yield
            return
        with self._origins.tracking(step.work.model):
            yield

    def built(self, step: TrainingStep) -> None:
        """Categorize the parameters, the buffers, and the rest of what the build has left allocated."""
        self._work = step.work
        for name, parameter in step.work.model.named_parameters():
            self._assign("parameters", [parameter], name.rpartition(".")[0])
        for name, buffer in step.work.model.named_buffers():
            self._assign("inputs", [buffer], name.rpartition(".")[0])
        self._assign_rest("inputs", self._spans)

    def ended(self, phase: str, step: TrainingStep) -> None:
        """Categorize what a phase has left allocated."""
        spans = [span for span in self._spans if span.step == self._spans[-1].step]
        if phase in ("forward", "loss"):
            self._assign_rest("activations", spans)
        elif phase == "backward":
            self._assign("gradients", step.gradients())
            self._assign("optimizer state", step.loss_scale)
            self._assign_rest("gradients" if step.keeps_whole_gradients else "optimizer state", spans[-1:])
        elif phase == "optimizer":
            self._assign_rest("optimizer state", spans[-1:])

    def step_recording(self, cell: ModelCell, protocol: Protocol) -> StepRecording:
        """Return the recording so far, with the facts about the model and the FLOPs of the current step."""
        recording = self.recording()
        own = adapted = None
        flops: dict[str, int] = {phase: self._flops[self.step, phase] for phase in PROCEDURES[protocol].phases}
        if self._work is not None and self._work.own is None and cell.lora:
            adapted = adapted_facts_of(self._work, flops)
        if self._work is not None and self._work.own is not None:
            values = self.device.values if isinstance(self.device, SimulatedDevice) else None
            own = facts_of(self._work, flops, assumed=values.assumed if values is not None else ())
        return StepRecording(
            **vars(recording),
            cell=cell,
            protocol=protocol,
            own_model=own,
            adapted_model=adapted,
            recomputed_flops=self._flops[self.step, RECOMPUTED],
        )

    def _assign(self, category: Category, tensors: Iterable[Tensor], module: str | None = None) -> None:
        for tensor in tensors:
            number = self.device.number_of(tensor)
            if number is None:
                continue
            self._categories[number] = category
            if module is not None:
                self._allocation_origins[number] = self._allocation_origins[number]._replace(module=module)

    def _assign_rest(self, category: Category, spans: Iterable[Span]) -> None:
        live: dict[int, None] = {}
        for span in spans:
            for event in self._events[span.first : span.end]:
                if event >= 0:
                    live[event] = None
                else:
                    live.pop(~event, None)
        for number in live:
            self._categories.setdefault(number, category)
