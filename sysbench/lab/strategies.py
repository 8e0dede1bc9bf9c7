"""Distribution of a model over ranks: DDP, FSDP2, tensor parallelism, and HSDP.

The implementations are torch's; the code here only decides which of them applies to which `nn.Module`. It works with
any process group: gloo, NCCL, and the fake process group of simulations.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from datetime import timedelta
from itertools import chain
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import torch
import torch.distributed as dist
from torch import Tensor, nn

from sysbench.errors import UnavailableError
from sysbench.lab.transformer import SelfAttention, SwiGLU, Transformer
from sysbench.spec.ranks import ShardDtype, Strategy, layout

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from sysbench.spec.model import GridCell

# torch.distributed.tensor and fsdp are imported in functions: this takes half a second, and one rank needs neither.


@contextmanager
def process_group(rank: int, ranks: int, store: str, device: torch.device, timeout_s: float) -> Iterator[None]:
    """Join the process group of a cell's ranks in this context.

    The ranks rendezvous through `store`: the URL of a file, or of a port that rank 0 opens. GPU tensors go through
    NCCL, all others through gloo. A collective operation fails after `timeout_s`.
    """
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    timeout = timedelta(seconds=timeout_s)
    url = urlsplit(store)
    if url.scheme == "tcp":
        # For such a URL, torch itself would use torchrun's store if torchrun has started the ranks.
        tcp_store = dist.TCPStore(url.hostname or "", url.port or 0, ranks, rank == 0, timeout)  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=tcp_store, rank=rank, world_size=ranks, timeout=timeout)
    else:
        dist.init_process_group(backend, init_method=store, rank=rank, world_size=ranks, timeout=timeout)
    yield
    # Not after an error: the other ranks would then fail too, and could report their failure first.
    dist.destroy_process_group()


def max_over_ranks(value: float = 0.0) -> float:
    """Wait for all ranks, and return the largest of their values; if there is no process group, return `value`.

    The values are exchanged through the host. Call this only between timed windows.
    """
    if not dist.is_initialized():
        return value
    largest = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return largest.item()


def mesh_of(strategy: Strategy, ranks: int, device_type: str) -> DeviceMesh:
    """Return the mesh of all ranks: two-dimensional (replicas, shards) for HSDP, otherwise one-dimensional."""
    from torch.distributed.device_mesh import init_device_mesh

    if strategy == "hsdp":
        return init_device_mesh(device_type, layout(strategy, ranks), mesh_dim_names=("replicate", "shard"))
    return init_device_mesh(device_type, (ranks,), mesh_dim_names=(strategy,))


def distributed(model: nn.Module, cell: GridCell, mesh: DeviceMesh) -> nn.Module:
    """Distribute `model`, which is identical on every rank, over the ranks of `mesh` by the cell's strategy.

    Returns the wrapped model. Call this before creating the optimizer: all strategies except DDP replace the parameters
    with sharded ones. Raises UnavailableError if the strategy cannot be applied to the model.
    """
    match cell.strategy:
        case "ddp":
            device = next(model.parameters()).device
            return nn.parallel.DistributedDataParallel(
                model,
                device_ids=[device] if device.type == "cuda" else None,
                process_group=mesh.get_group(),
                bucket_cap_mb=cell.bucket_mb,
                gradient_as_bucket_view=cell.gradient_as_bucket_view == "on",
            )
        case "fsdp2" | "hsdp":
            _shard(model, cell, mesh)
        case "tp":
            _parallelize(model, mesh)
    return model


@contextmanager
def gradient_sync(model: nn.Module, enabled: bool) -> Iterator[None]:
    """Switch the gradient exchange between the ranks of a `distributed` model on or off in this context.

    Run both the forward and the backward pass inside this context. If gradients are not exchanged, DDP leaves them as
    they are; FSDP2 keeps them unsharded, and reduces their sums after the next backward pass that exchanges gradients.
    """
    if isinstance(model, nn.parallel.DistributedDataParallel):
        with nullcontext() if enabled else model.no_sync():
            yield
        return
    sharded: Any = model
    sharded.set_requires_gradient_sync(enabled)
    yield


def _shard(model: nn.Module, cell: GridCell, mesh: DeviceMesh) -> None:
    """Shard each block (`blocks`) with FSDP2 and then the rest, so that only one block at a time is unsharded.

    The output of a model that computes in bf16 is converted to fp32 for the loss, as with autocast.
    """
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

    is_offloaded = cell.offload == "parameters"
    offload = CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda") if is_offloaded else OffloadPolicy()
    reshard = cell.reshard == "on" if isinstance(cell.reshard, str) else cell.reshard
    # reduce_dtype is explicit because torch's default changed: up to 2.14 param_dtype, from 2.15 the optimizer's dtype.
    policy = MixedPrecisionPolicy(_dtype(cell.param_dtype), _dtype(cell.reduce_dtype or cell.param_dtype))
    members: list[Any] = list(blocks(model))
    for module in members:
        fully_shard(module, mesh=mesh, reshard_after_forward=reshard, mp_policy=policy, offload_policy=offload)
    root_policy = replace(policy, output_dtype=torch.float32 if policy.param_dtype else None)
    root: Any = fully_shard(
        model, mesh=mesh, reshard_after_forward=reshard, mp_policy=root_policy, offload_policy=offload
    )
    if cell.prefetch:
        forward, backward = [root, *members], [root, *reversed(members)]
        for position in range(len(forward)):
            prefetched = slice(position + 1, position + 1 + cell.prefetch)
            forward[position].set_modules_to_forward_prefetch(forward[prefetched])
            backward[position].set_modules_to_backward_prefetch(backward[prefetched])


def _dtype(name: ShardDtype | None) -> torch.dtype | None:
    return None if name is None else {"fp32": torch.float32, "bf16": torch.bfloat16}[name]


def blocks(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the repeated blocks of a model, such as its layers: those of all `block_lists`."""
    return chain.from_iterable(block_lists(model))


def block_lists(model: nn.Module) -> Iterator[list[nn.Module]]:
    """Yield each list of repeated blocks; an encoder and a decoder have one each.

    Blocks are the children of a ModuleList or Sequential that all have parameters and are of the same class. Lists
    inside a block are not searched.
    """
    for child in model.children():
        members = list(child.children()) if isinstance(child, nn.ModuleList | nn.Sequential) else []
        same_class = len(members) > 1 and len({type(member) for member in members}) == 1
        if same_class and all(any(True for _ in member.parameters()) for member in members):
            yield members
        else:
            yield from block_lists(child)


def data_parallel_index(strategy: Strategy | None) -> int:
    """Return the index of this rank's data, from 0; all tensor-parallel ranks use index 0."""
    return dist.get_rank() if strategy not in (None, "tp") and dist.is_initialized() else 0


def _parallelize(model: nn.Module, mesh: DeviceMesh) -> None:
    """Split every attention by heads, and every feed-forward block by columns and then rows, as Megatron-LM does.

    Each attention and each feed-forward block needs two all-reduces: one of its output in the forward pass, one of the
    gradient of its input in the backward pass. Every rank computes embeddings, norms and the output projection in full.
    Shoeybi et al., "Megatron-LM", 2019. A user's model is split by its own method `parallelize`.
    """
    if not isinstance(model, Transformer):
        parallelize = getattr(model, "parallelize", None)
        if not callable(parallelize):
            raise UnavailableError(
                f"--strategy tp: cannot tell which layers of {type(model).__name__} to split. Give it a method "
                "parallelize(mesh), or use --strategy ddp, fsdp2"
            )
        parallelize(mesh)
        return
    for module in model.modules():
        match module:
            case SelfAttention():
                module.heads //= mesh.size()
                *columns, row = module.q, module.k, module.v, module.output
            case SwiGLU():
                *columns, row = module.w1, module.w3, module.w2
            case _:
                continue
        for column in columns:
            _split(column, mesh, 0)
        _split(row, mesh, 1)


def _split(linear: nn.Module, mesh: DeviceMesh, dimension: int) -> None:
    """Shard the weight (d_out, d_in) of a linear layer along its output (`dimension` 0) or its input (1).

    Along the output, the layer maps the whole input to this rank's part of the output; along the input, it maps this
    rank's part of the input to the whole output. torch's `ColwiseParallel` and `RowwiseParallel` support only
    `nn.Linear`.
    """
    from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_module, distribute_tensor

    by_output = dimension == 0
    replicated: list[Placement] = [Replicate()]
    sharded_last: list[Placement] = [Shard(-1)]

    def shard(_: str, module: nn.Module, mesh: DeviceMesh) -> None:
        for name, parameter in list(module.named_parameters(recurse=False)):
            # Every rank has drawn the same values: nothing has to be sent.
            sharded_weight = distribute_tensor(parameter, mesh, [Shard(dimension)], src_data_rank=None)
            module.register_parameter(name, nn.Parameter(sharded_weight))

    def to_dtensor(_: nn.Module, inputs: tuple[Tensor], mesh: DeviceMesh) -> Any:
        return DTensor.from_local(inputs[0], mesh, replicated if by_output else sharded_last, run_check=False)

    def to_local_tensor(_: nn.Module, output: Any, mesh: DeviceMesh) -> Any:
        return output.redistribute(mesh, sharded_last if by_output else replicated).to_local()

    distribute_module(linear, mesh, shard, to_dtensor, to_local_tensor)
