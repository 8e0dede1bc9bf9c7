"""ZeRO stages 1 and 2: ranks that each have the whole model share the optimizer's state, and reduced gradients.

Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", 2020. The code here follows
DeepSpeed 0.19 (runtime/zero/stage_1_and_2.py) with its defaults and `overlap_comm`: it requests the same memory, in the
same order, and calls the same collectives, through torch.distributed. It is no measurement of DeepSpeed's host time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._utils import _flatten_dense_tensors

from sysbench.errors import UnavailableError

BUCKET_ELEMENTS = 500_000_000
"""DeepSpeed's `reduce_bucket_size`: elements of each of two buffers, whatever the size of the model."""

_ALIGNED = 2
"""Elements to which each partition is aligned, 4 bytes of 16-bit ones (nccl_start_alignment_factor)."""


class _Partition:
    """The parameters of one group in one buffer, of which this rank updates a part through an fp32 copy."""

    def __init__(self, group: dict[str, Any], rank: int, ranks: int) -> None:
        self.parameters: list[Tensor] = [each for each in group["params"] if each.requires_grad]
        if len({each.dtype for each in self.parameters}) > 1:
            raise UnavailableError("--strategy zero1 and zero2 need trained parameters of one dtype")
        count = sum(each.numel() for each in self.parameters)
        padding = -count % (_ALIGNED * ranks)
        self.size = (count + padding) // ranks
        self.start = self.size * rank
        self.flat = self.parameters[0].new_empty(count + padding)
        self.mine: list[tuple[Tensor, int, int]] = []
        """Parameters of which this rank updates elements: each with the first, and with their number."""
        self.offset_of: dict[Tensor, int] = {}
        offset = 0
        for parameter in self.parameters:
            size = parameter.numel()
            place = self.flat[offset : offset + size]
            parameter.data = place.copy_(parameter.detach().view(-1)).view_as(parameter)
            first, last = max(offset, self.start), min(offset + size, self.start + self.size)
            if first < last:
                self.mine.append((parameter, first - offset, last - first))
            self.offset_of[parameter] = offset
            offset += size
        self.flat[count:].zero_()
        self.own = self.flat[self.start : self.start + self.size]
        self.master = self.own.detach().clone().float().requires_grad_()
        self.accumulated: list[Tensor] | None = None
        self.averaged: list[Tensor] = []
        group["params"] = [self.master]

    def owners(self, parameter: Tensor) -> Iterator[tuple[int, int]]:
        """Yield each rank that updates a part of a parameter, with the number of elements of that part."""
        start = self.offset_of[parameter]
        end = start + parameter.numel()
        while start < end:
            rank = start // self.size
            until = min(end, (rank + 1) * self.size)
            yield rank, until - start
            start = until

    def add_gradients(self, *, is_last: bool) -> None:
        """Add the reduced gradients of a micro-batch; after the last, `averaged` has those of this rank's part."""
        found = [each.grad if each.grad is not None else torch.zeros_like(each) for each, _, _ in self.mine]
        if self.accumulated is None:
            self.accumulated = found
        else:
            for total, more in zip(self.accumulated, found, strict=True):
                total.add_(more)
        if is_last:
            whole = zip(self.accumulated, self.mine, strict=True)
            self.averaged = [total.view(-1)[first : first + count] for total, (_, first, count) in whole]
            missing = self.size - sum(count for _, _, count in self.mine)
            if missing:
                self.averaged.append(self.own.new_zeros(missing))
            self.accumulated = None


class ZeroOptimizer(torch.optim.Optimizer):
    """An optimizer over this rank's part of the parameters, whose gradients it reduces during backward.

    Gradients are copied into a bucket as they become complete. A full bucket is divided, reduced over all ranks on a
    stream of its own, and its part of this rank copied out; meanwhile, the other bucket is filled. Stage 2 does so in
    each micro-batch, stage 1 in the last one, and until then keeps all gradients. After the update, parameters are
    gathered. Each pass runs within `micro_batch`.
    """

    def __init__(self, inner: torch.optim.Optimizer, stage: int, group: Any, bucket_bytes: int | None) -> None:
        """Take over the parameters of `inner`, whose state is then that of this rank's part among those of `group`."""
        rank, self._ranks = dist.get_rank(group), dist.get_world_size(group)
        trained = [each for one in inner.param_groups for each in one["params"] if each.requires_grad]
        super().__init__(trained, {})
        self._rank, self._stage, self._group, self._inner = rank, stage, group, inner
        inner.param_groups = [one for one in inner.param_groups if any(each.requires_grad for each in one["params"])]
        self._partitions = [_Partition(one, rank, self._ranks) for one in inner.param_groups]
        self._of = {each: partition for partition in self._partitions for each in partition.parameters}
        self._capacity = bucket_bytes // trained[0].element_size() if bucket_bytes else BUCKET_ELEMENTS
        self.is_last_micro_batch = True
        self._device: Any = torch.get_device_module(trained[0].device.type)
        self._stream = self._device.Stream()
        self._forget_buckets()
        for parameter in trained:
            parameter.register_post_accumulate_grad_hook(self._complete)

    def state_tensors(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the fp32 copy of this rank's part and each tensor of its state, after one of its parameters."""
        for partition in self._partitions:
            first = partition.parameters[0]
            yield first, partition.master
            yield from (
                (first, each) for each in self._inner.state[partition.master].values() if isinstance(each, Tensor)
            )

    def gradients(self) -> Iterator[Tensor]:
        """Yield the reduced gradients that this rank keeps."""
        for partition in self._partitions:
            yield from partition.accumulated or partition.averaged

    def _forget_buckets(self) -> None:
        self._buckets: list[Tensor] = []
        self._reduced: Tensor | None = None
        self._reduced_elements = 0
        self._clear()

    def _clear(self) -> None:
        self._filled = 0
        self._waiting: list[Tensor] = []

    @torch.no_grad()
    def _complete(self, parameter: Tensor) -> None:
        """Copy a complete gradient into the bucket, which is reduced first if it has no room for it."""
        if not self._buckets:
            self._buckets = [self._of[parameter].flat.new_empty(self._capacity) for _ in range(2)]
        if self._stage == 1 and not self.is_last_micro_batch:
            return
        assert parameter.grad is not None
        size = parameter.numel()
        if self._filled + size > self._capacity:
            self._reduce()
            self._buckets.reverse()
        if size <= self._capacity:  # else it is reduced where it is
            place = self._buckets[0][self._filled : self._filled + size]
            parameter.grad.data = place.copy_(parameter.grad.view(-1)).view_as(parameter)
        self._filled += size
        self._waiting.append(parameter)

    def _reduce(self) -> None:
        """Average what is in the bucket over all ranks, and keep what this rank updates."""
        if not self._waiting:
            return
        is_large = self._filled > self._capacity
        whole = self._waiting[0].grad.view(-1) if is_large else self._buckets[0][: self._filled]  # type: ignore[union-attr]
        current = self._device.current_stream()
        self._stream.wait_stream(current)
        current.wait_stream(self._stream)
        with self._device.stream(self._stream):
            whole.div_(self._ranks)
            parts = list(self._parts(whole))
            reduced = _flatten_dense_tensors([part for _, part in parts])
            dist.all_reduce(reduced, group=self._group)
            start = 0
            for rank, part in parts:
                if rank == self._rank:
                    part.copy_(reduced[start : start + part.numel()])
                start += part.numel()
            del reduced
            for parameter in self._waiting:
                if any(rank == self._rank for rank, _ in self._of[parameter].owners(parameter)):
                    self._keep(parameter)
                elif self._stage == 2:
                    parameter.grad = None
        self._clear()

    def _parts(self, whole: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Yield the parts of a bucket that one rank updates, each with the rank."""
        sizes: list[tuple[int, int]] = []
        for parameter in self._waiting:
            for rank, size in self._of[parameter].owners(parameter):
                if sizes and sizes[-1][0] == rank:
                    sizes[-1] = (rank, sizes[-1][1] + size)
                else:
                    sizes.append((rank, size))
        start = 0
        for rank, size in sizes:
            yield rank, whole[start : start + size]
            start += size

    def _keep(self, parameter: Tensor) -> None:
        """Copy a reduced gradient out of the bucket, which is filled again."""
        if self._reduced is None:
            sizes = [each.numel() for partition in self._partitions for each, _, _ in partition.mine]
            self._reduced = self._of[parameter].flat.new_empty(sum(sizes))
        assert parameter.grad is not None
        place = self._reduced[self._reduced_elements : self._reduced_elements + parameter.numel()]
        parameter.grad.data = place.copy_(parameter.grad.view(-1)).view_as(parameter)
        self._reduced_elements += parameter.numel()

    @contextmanager
    def micro_batch(self, *, is_last: bool) -> Iterator[None]:
        """Context manager for a pass of a micro-batch; reduces at its end what is left of its gradients."""
        self.is_last_micro_batch = is_last
        yield
        self._finish()

    @torch.no_grad()
    def _finish(self) -> None:
        if not self._waiting:
            return
        self._reduce()
        self._device.current_stream().wait_stream(self._stream)
        for partition in self._partitions:
            partition.add_gradients(is_last=self.is_last_micro_batch)
        self._forget_buckets()
        for parameter in self._of:
            parameter.grad = None

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update this rank's part in fp32, and gather the parameters."""
        for partition in self._partitions:
            self._norm(partition.averaged)
            flat = _flatten_dense_tensors(partition.averaged)
            partition.master.grad = flat.float()
            del flat
            partition.averaged = []
        self._inner.step()
        for partition in self._partitions:
            partition.master.grad = None
            partition.own.copy_(partition.master)
            dist.all_gather_into_tensor(partition.flat, partition.own, group=self._group)

    def _norm(self, gradients: Sequence[Tensor]) -> None:
        """Compute the norm of all ranks' gradients in double precision, as for clipping."""
        norms = [torch.linalg.vector_norm(each.double()) for each in gradients]
        dist.all_reduce(torch.stack(norms).square().sum().float(), group=self._group)
