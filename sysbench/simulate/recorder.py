"""Observation of a device while operators run on it: their requests to the allocator become a recording."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from sysbench.lab.dispatch import Arguments, Operator, Options
from sysbench.lab.memory.accounting import tensors_in
from sysbench.log.outcomes import BUILD
from sysbench.simulate.cuda.kernels import MATRIX_PRODUCTS, is_outer_product, uses_cublas_lt
from sysbench.simulate.cuda.reductions import Held, SplitReduction
from sysbench.simulate.gpu import Workspaces
from sysbench.simulate.origins import OUTSIDE, Origin, Origins
from sysbench.simulate.platform import Platform
from sysbench.simulate.recording import Allocation, Recording, Span
from sysbench.simulate.tensors import DeviceObserver, ObservedDevice, SimulatedDevice
from sysbench.snapshot import Category


class RealDevice(ObservedDevice):
    """A dispatch mode that reports to an observer which storages are allocated and freed on a real device."""

    def __init__(self, observer: DeviceObserver, device: torch.device) -> None:
        super().__init__(observer)
        self._device = device

    def run(self, func: Operator, args: Arguments, kwargs: Options) -> object:
        """Run the operator, and report the new storages among its results."""
        self._observer.begins(func, args)
        result = func(*args, **kwargs)
        self._arguments = args
        try:
            for tensor in tensors_in([result]):
                if tensor.device.type == self._device.type:
                    self._watch.track(tensor)
        finally:
            self._arguments = ()  # a longer-lived reference would keep the tensors alive
        self._observer.ends(func, args, kwargs, result)
        return result


Device = SimulatedDevice | RealDevice


class Recorder(DeviceObserver):
    """An observer that builds a recording while operators run on a device.

    step        number of the current step; -1 before the first
    occurrence  number of earlier occurrences of the phase in the step
    """

    def __init__(self, platform: Platform, device: Callable[[DeviceObserver], Device], origins: Origins | None) -> None:
        self.device = device(self)
        self._platform = platform
        self._origins = origins
        self._origin = Origin(OUTSIDE, 0)
        self._events: list[int] = []
        self._sizes: list[int] = []
        self._streams: list[int] = []
        self._stream_numbers: dict[torch.Stream | torch.cpu.Stream, int] = {torch.cpu.current_stream(): 0}
        self._allocation_origins: list[Origin] = []
        self._categories: dict[int, Category] = {}
        self._spans: list[Span] = []
        self._open: Span | None = None
        """The innermost span that has begun and not ended; its end is unknown."""
        self.phase = BUILD
        self.step = -1
        self.occurrence = 0
        self._reductions: dict[int, SplitReduction] = {}
        self._copies: list[int] = []
        """Copies that the current operator has made of its arguments."""
        self._kept_workspaces: set[tuple[bool, bool]] = set()
        """(in backward, of cuBLASLt) for each workspace that is kept; autograd runs backward on a thread of its own."""

    @property
    def count(self) -> int:
        """Return the number of allocations so far, which is the number of the next allocation."""
        return len(self._sizes)

    @property
    def module(self) -> str:
        """Return the path of the module to which the current operator belongs; empty if origins are not recorded."""
        return self._origin.module

    @property
    def events_so_far(self) -> int:
        """Return the number of events so far, which is the position of the next event."""
        return len(self._events)

    def is_workspace(self, number: int) -> bool:
        """Return whether this allocation is a cuBLAS workspace."""
        return self._categories.get(number) == "workspace"

    # --- reports from the device

    def begins(self, func: Operator, arguments: Arguments) -> None:
        """Determine the operator's origin, which applies to all its allocations; record copies of its arguments."""
        if self._origins is not None:
            self._origin = self._origins.current(func._opname)
        if (copies := self._platform.copies.get(func)) is not None:
            self._copies = [self._allocate(size_bytes, self._origin) for size_bytes in copies(*arguments)]

    def allocated(self, size_bytes: int, arguments: Arguments) -> int:
        """Record an allocation, and return its number."""
        origin = self._origin
        if not origin.module and self.phase in ("backward", "optimizer"):
            # Optimizer state and gradients belong to the module of their parameter, the operator's first tensor.
            first = arguments[0] if arguments else None
            if isinstance(first, list | tuple) and first:
                first = first[0]
            number = self.device.number_of(first) if isinstance(first, Tensor) else None
            source = self._allocation_origins[number] if number is not None else Origin(OUTSIDE, 0)
            origin = Origin(source.module, origin.stack or source.stack, origin.operator)
        return self._allocate(size_bytes, origin)

    def observes(self, func: Operator) -> bool:
        """Return whether the operator may need scratch memory, copies of arguments, or a workspace of cuBLAS."""
        return func in MATRIX_PRODUCTS or func in self._platform.scratch or func in self._platform.copies

    def ends(self, func: Operator, arguments: Arguments, options: Options, result: object) -> None:
        """Record the scratch memory of the operator's kernel, and the workspaces of a matrix product."""
        scratch, workspaces = self._platform.scratch.get(func), self._platform.workspaces
        groups = scratch(*arguments) if scratch is not None else ()
        product = workspaces if func in MATRIX_PRODUCTS and not is_outer_product(func, arguments) else None
        for group in groups or ([()] if product else ()):
            numbers: list[int] = []
            for each in group:
                freed_at_end = self._copies if isinstance(each, Held) else numbers
                freed_at_end += self._allocate_scratch(each)
            if product is not None:  # after the copies of its operands, which are its only group
                numbers += self._take_workspaces(product, uses_cublas_lt(func, arguments, options, result))
            for number in reversed(numbers):
                self.freed(number)
        while self._copies:
            self.freed(self._copies.pop())

    def freed(self, number: int) -> None:
        """Record that an allocation is freed."""
        self._events.append(~number)

    # --- progress of the run

    @contextmanager
    def span(self, step: int, name: str) -> Iterator[None]:
        """Context manager that records all events inside it as one span.

        A span within another divides the outer one into the span before it and the span after it, of the same name.
        """
        outer = self._open
        if outer is not None:
            self._spans.append(outer._replace(end=len(self._events)))
        self._open, self.phase = Span(step, name, len(self._events), len(self._events)), name
        self.occurrence = sum((span.step, span.name) == (step, name) for span in self._spans)
        if self._origins is not None and step != self.step:
            self._origins.forget_forward()
        self.step = step
        yield
        self._spans.append(self._open._replace(end=len(self._events)))
        self._open = outer._replace(first=len(self._events)) if outer is not None else None
        self.phase = outer.name if outer is not None else name

    def recording(self) -> Recording:
        """Return the recording so far."""
        categories = (self._categories.get(number, "temporaries") for number in range(len(self._sizes)))
        workspaces, found = self._platform.workspaces, filter(self.is_workspace, self._categories)
        return Recording(
            events=tuple(self._events),
            allocations=tuple(
                Allocation(size_bytes, category, *origin, stream)
                for size_bytes, category, origin, stream in zip(
                    self._sizes, categories, self._allocation_origins, self._streams, strict=True
                )
            ),
            spans=tuple(self._spans),
            stacks=tuple(self._origins.stacks) if self._origins is not None else ((),),
            workspaces=frozenset(
                number for number in found if workspaces and self._sizes[number] == workspaces.product_bytes
            ),
            reductions=dict(self._reductions),
        )

    def _allocate(self, size_bytes: int, origin: Origin) -> int:
        number = len(self._sizes)
        self._sizes.append(size_bytes)
        # torch's CPU streams do nothing, but its code enters them like CUDA's.
        self._streams.append(self._stream_numbers.setdefault(torch.cpu.current_stream(), len(self._stream_numbers)))
        self._allocation_origins.append(origin)
        self._events.append(number)
        return number

    def _allocate_scratch(self, wanted: int | SplitReduction) -> list[int]:
        sizes: Sequence[int]
        if isinstance(wanted, int):
            sizes = [int(wanted)]  # also of `Held`, which a snapshot must not contain
        elif self._platform.multiprocessors is not None:
            sizes = wanted.scratch_bytes(self._platform.multiprocessors)
        else:
            self._reductions[self.count] = wanted
            return [self._allocate(0, self._origin) for _ in ("partial results", "semaphores")]
        return [self._allocate(size_bytes, self._origin) for size_bytes in sizes if size_bytes]

    def _take_workspaces(self, workspaces: Workspaces, of_lt: bool) -> list[int]:
        """Record the workspaces that a product allocates; return the numbers of those that it frees at its end."""
        if not workspaces.are_kept:
            size_bytes = workspaces.lt_bytes if of_lt else workspaces.product_bytes
            # A measured history does not tell that of cuBLASLt from other scratch memory.
            allocate = self._allocate if of_lt else self._allocate_workspace
            return [allocate(size_bytes, self._origin)] if size_bytes else []
        is_backward = torch._C._current_autograd_node() is not None
        kept = {(is_backward, False): workspaces.product_bytes}
        if of_lt and workspaces.lt_bytes is not None:
            kept[is_backward, True] = workspaces.lt_bytes
        for key, size_bytes in kept.items():
            if size_bytes and key not in self._kept_workspaces:
                self._kept_workspaces.add(key)
                self._allocate_workspace(size_bytes, Origin(OUTSIDE, self._origin.stack))
        return []

    def _allocate_workspace(self, size_bytes: int, origin: Origin) -> int:
        number = self._allocate(size_bytes, origin)
        self._categories[number] = "workspace"
        return number
