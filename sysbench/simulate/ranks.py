"""Simulation of one rank of many in a single process: a fake process group, and shards without data.

torch's own FSDP2, HSDP and tensor parallelism run on the simulated device; collectives return at once. DDP's reducer is
written in C++ and reads values, so `BucketedReplica` takes the place of DDP. Sources, PyTorch 2.11 to 2.13:
torch/distributed/fsdp/_fully_shard, torch/nn/parallel/distributed.py, torch/csrc/distributed/c10d/reducer.cpp.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C import _get_dispatch_mode, _TorchDispatchModeKey
from torch._C._distributed_c10d import FakeWork
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp._fully_shard import _fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import is_traceable_wrapper_subclass_type

from sysbench.lab.dispatch import Arguments, Operator, Options
from sysbench.lab.memory.accounting import tensors_in
from sysbench.lab.strategies import mesh_of
from sysbench.simulate.gpu import MIB
from sysbench.simulate.ordered import ordered_streams
from sysbench.simulate.tensors import DEVICE, ObservedDevice, SimulatedDevice
from sysbench.spec.ranks import Strategy

FIRST_BUCKET_BYTES = MIB
"""Capacity of DDP's first bucket (kDefaultFirstBucketBytes in reducer.hpp)."""

BUCKET_BYTES = 25 * MIB
"""Capacity of all other buckets (default of `bucket_cap_mb`)."""

BROADCAST_BYTES = 250 * MIB
"""Size of the chunks in which parameters are sent to the other ranks (`broadcast_bucket_size`)."""

_SHARDABLE = frozenset({"detach", "alias", "clone", "copy_", "zero_", "fill_", "zeros_like", "ones_like", "empty_like"})
"""Operators that can run on each shard separately, in addition to those that torch tags as pointwise."""

_REDUCTIONS = ("norm", "max", "powsum")


@contextmanager
def simulated_ranks(strategy: Strategy, ranks: int) -> Iterator[DeviceMesh]:
    """Context manager that makes this process rank 0 of `ranks`; yields the mesh of all ranks."""
    replacements = [
        (_fully_shard, "_get_device_from_mesh", lambda mesh: DEVICE),
        # A simulated shard reports `DEVICE`, but its wrapper would report torch's `meta`.
        (DTensor, "device", property(lambda tensor: tensor._local_tensor.device)),
        (nn.parallel, "DistributedDataParallel", BucketedReplica),
        (FSDPParam, "_init_sharded_param", _init_sharded_param),
    ]
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    with ordered_streams(), ExitStack() as restored:
        restored.callback(dist.destroy_process_group)
        for place, name, replacement in replacements:
            restored.callback(setattr, place, name, getattr(place, name))
            setattr(place, name, replacement)
        yield mesh_of(strategy, ranks, "cpu")


_Replica = nn.parallel.DistributedDataParallel
_init_on_device = FSDPParam._init_sharded_param


def _init_sharded_param(shard: FSDPParam, *args: Any, **options: Any) -> None:
    """Make a parameter's shard, and move it to the host if it is offloaded, which torch leaves out without data."""
    _init_on_device(shard, *args, **options)
    if shard.offload_to_cpu:
        sharded: Any = shard.sharded_param
        length = sharded._local_tensor.shape[shard.fsdp_placement.dim]
        padded = shard._sharded_param_data.view(shard.padded_sharded_param_size).cpu()
        shard._sharded_param_data = padded.view(-1)
        sharded._local_tensor = padded.narrow(shard.fsdp_placement.dim, 0, length)


@contextmanager
def sharding_on(device: ObservedDevice) -> Iterator[None]:
    """Context manager in which `device` handles tensors that are sharded over ranks, and resized storages."""
    device.wrappers = Shards() if isinstance(device, SimulatedDevice) else RealShards()
    with device.watching_resizes():
        yield


class RealShards:
    """Handler for a real device: leaves wrapper tensors to torch, and observes the operators on their local tensors."""

    def run(
        self, device: ObservedDevice, func: Operator, types: Iterable[type], args: Arguments, kwargs: Options
    ) -> object:
        """Run the operator on `device`, unless it has wrapper tensors as arguments or torch's fake mode is active."""
        if _get_dispatch_mode(_TorchDispatchModeKey.FAKE) is not None:
            return func(*args, **kwargs)
        if any(is_traceable_wrapper_subclass_type(each) for each in types):
            return self.run_on_wrappers(device, func, args, kwargs)
        return device.run(func, args, kwargs)

    def run_on_wrappers(self, device: ObservedDevice, func: Operator, args: Arguments, kwargs: Options) -> object:
        """Return NotImplemented, so that the wrapper tensors run the operator."""
        return NotImplemented


class Shards(RealShards):
    """Handler for a simulated device: elementwise operators run directly on this rank's shards.

    For every list of tensors that an optimizer updates, torch would first infer how the results are sharded. For a
    model of 32 layers, this inference takes ten times as long as everything else. Here, results are sharded like the
    arguments.
    """

    def run_on_wrappers(self, device: ObservedDevice, func: Operator, args: Arguments, kwargs: Options) -> object:
        """Run an elementwise operator on the local shards if all arguments are sharded alike; else let torch run it."""
        sharded = [each for each in tensors_in([*args, *kwargs.values()]) if isinstance(each, DTensor)]
        if not sharded or not _is_elementwise(func) or not _have_same_sharding(sharded):
            return NotImplemented
        local = {name: _local(value) for name, value in kwargs.items()}
        result = device.run(func, tuple(map(_local, args)), local)
        given = args[0] if isinstance(args[0], list | tuple) else sharded[:1]
        return _sharded(result, given)

    def communicate(self, func: Operator, args: Arguments, kwargs: Options) -> object:
        """Return a completed work object, preceded by the output tensors if the operator returns them too."""
        work = FakeWork().boxed()
        return work if len(func._schema.returns) == 1 else (args[0], work)


def _is_elementwise(func: Operator) -> bool:
    name = func._schema.name.removeprefix("aten::")
    if name.startswith("_foreach_"):
        return not any(each in name for each in _REDUCTIONS)
    return name.startswith("_fused_adam") or name in _SHARDABLE or torch.Tag.pointwise in func.tags


def _have_same_sharding(sharded: Sequence[DTensor]) -> bool:
    placements = sharded[0].placements
    return not any(placement.is_partial() for placement in placements) and all(
        tensor.placements == placements and tensor.device_mesh is sharded[0].device_mesh for tensor in sharded
    )


def _local(value: object) -> object:
    if isinstance(value, list | tuple):
        return type(value)(map(_local, value))
    return value._local_tensor if isinstance(value, DTensor) else value


def _sharded(result: Any, given: Sequence[Any]) -> object:
    """Wrap local results as DTensors, each sharded like the tensor at the same position of `given`."""
    if isinstance(result, list | tuple):
        return type(result)(_sharded(each, [like]) for each, like in zip(result, given, strict=True))
    like = given[0]
    if not isinstance(result, Tensor) or result is like._local_tensor:
        return like if isinstance(result, Tensor) else result
    meta = TensorMeta(like.shape, like.stride(), result.dtype)
    spec = DTensorSpec(like.device_mesh, like.placements, tensor_meta=meta)
    create: Any = DTensor
    return create(result, spec, requires_grad=False)


class BucketedReplica(nn.Module):
    """Replacement for DistributedDataParallel on one rank, with the same memory and kernels.

    The first step reduces all gradients in one bucket. Before the second step, gradients are assigned to buckets in the
    order in which they became complete. Buckets need memory in addition to the gradients, which are copied into the
    buckets and back. With `gradient_as_bucket_view`, gradients become views of the buckets and are not copied back.
    """

    def __init__(
        self,
        module: nn.Module,
        device_ids: object = None,
        process_group: Any = None,
        bucket_cap_mb: int | None = None,
        gradient_as_bucket_view: bool = False,
    ) -> None:
        super().__init__()
        self.module = module
        self._group = process_group
        self._are_views = gradient_as_bucket_view
        given = bucket_cap_mb and bucket_cap_mb * MIB
        # An explicit capacity also applies to the first bucket (_BucketCapacityConfig).
        self._capacities = (given, given) if given else (FIRST_BUCKET_BYTES, BUCKET_BYTES)
        self.bucket_bytes_cap = self._capacities[1]  # which torch's DDPOptimizer reads
        self._trainable: list[Tensor] = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self._order: list[Tensor] = []
        self._stream = torch.cpu.Stream()
        self._broadcast([*module.parameters(), *module.buffers()])
        self._set_buckets([self._trainable])
        self._rebuilt = False
        self._synchronizes = self._sends_buffers = True
        for tensor in self._trainable:
            tensor.register_post_accumulate_grad_hook(self._complete)

    def forward(self, *args: object, **kwargs: object) -> object:
        """Run the model, after a broadcast of rank 0's buffers.

        The broadcast is skipped if the previous forward pass ran inside `no_sync` or without gradients.
        """
        if torch.is_grad_enabled() and self._order and not self._rebuilt:
            self._buckets.clear()
            self._set_buckets(_fill_buckets(self._order, *self._capacities))
            self._rebuilt = True
        if self._sends_buffers:
            self._broadcast(list(self.module.buffers()))
        self._sends_buffers = self._synchronizes and torch.is_grad_enabled()
        self._incomplete = {number: len(bucket) for number, (_, bucket) in enumerate(self._buckets)}
        self._reduced = 0
        with mock.patch.object(_Replica, "_active_ddp_module", self):  # so that the compiler divides it by buckets
            return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Context manager in which gradients accumulate locally and are not reduced."""
        self._synchronizes = False
        yield
        self._synchronizes = True

    def _set_buckets(self, buckets: Iterable[list[Tensor]]) -> None:
        self._buckets: list[tuple[Tensor, list[Tensor]]] = []
        self._bucket_of: dict[Tensor, int] = {}
        self._views: dict[Tensor, Tensor] = {}
        for number, parameters in enumerate(buckets):
            lengths = [parameter.numel() for parameter in parameters]
            flat = parameters[0].new_empty(sum(lengths))
            self._buckets.append((flat, parameters))
            for tensor, view in zip(parameters, flat.split(lengths), strict=True):
                self._bucket_of[tensor], self._views[tensor] = number, view.view_as(tensor)
                if self._are_views and tensor.grad is not None:
                    tensor.grad = self._views[tensor].copy_(tensor.grad)

    @torch.no_grad()
    def _complete(self, parameter: Tensor) -> None:
        """Copy a complete gradient, divided by the number of ranks, into its bucket; reduce the buckets that are full.

        Buckets are reduced in order (Reducer::mark_bucket_ready). Once all buckets are reduced, gradients that are not
        views of buckets are copied back. Inside `no_sync`, nothing happens.
        """
        if not self._synchronizes:
            return
        if not self._rebuilt:
            self._order.append(parameter)
        assert parameter.grad is not None
        torch.mul(parameter.grad, 1 / self._group.size(), out=self._views[parameter])
        if self._are_views:
            parameter.grad = self._views[parameter]
        self._incomplete[self._bucket_of[parameter]] -= 1
        while self._reduced < len(self._buckets) and not self._incomplete[self._reduced]:
            self._stream.wait_stream(torch.cpu.current_stream())
            with torch.cpu.stream(self._stream):
                dist.all_reduce(self._buckets[self._reduced][0], group=self._group, async_op=True)
            self._reduced += 1
        if self._reduced == len(self._buckets):
            torch.cpu.current_stream().wait_stream(self._stream)
            for tensor, view in self._views.items() if not self._are_views else ():
                assert tensor.grad is not None
                tensor.grad.copy_(view)

    def _broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Broadcast tensors from rank 0, concatenated into chunks of limited size (broadcast_coalesced)."""
        kinds: dict[torch.dtype, list[Tensor]] = {}
        for tensor in tensors:
            kinds.setdefault(tensor.dtype, []).append(tensor.detach())
        for same_dtype in kinds.values():
            for chunk in _fill_buckets(same_dtype, BROADCAST_BYTES, BROADCAST_BYTES):
                flat = torch.cat([part.flatten() for part in chunk])
                dist.broadcast(flat, src=0, group=self._group, async_op=True)
                for part in chunk:
                    part.copy_(flat[: part.numel()].view_as(part))


def _fill_buckets(tensors: Sequence[Tensor], first_bytes: int, other_bytes: int) -> Iterator[list[Tensor]]:
    """Yield buckets, each closed as soon as it reaches its capacity (compute_bucket_assignment_by_size)."""
    bucket: list[Tensor] = []
    capacity_bytes, size_bytes = first_bytes, 0
    for tensor in tensors:
        bucket.append(tensor)
        size_bytes += tensor.numel() * tensor.element_size()
        if size_bytes >= capacity_bytes:
            yield bucket
            bucket, capacity_bytes, size_bytes = [], other_bytes, 0
    if bucket:
        yield bucket
