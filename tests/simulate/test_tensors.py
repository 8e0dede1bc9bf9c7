"""Simulated tensors: real ones of the same program say what shapes, types and lives they must have."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from sysbench.errors import UnavailableError
from sysbench.lab.attention import KINDS
from sysbench.lab.memory.accounting import round_to_block
from sysbench.package import DIRECTORY
from sysbench.simulate.gpu import Gpu
from sysbench.simulate.platform import Platform
from sysbench.simulate.steps import record
from sysbench.simulate.tensors import (
    DEVICE,
    Arguments,
    DeviceObserver,
    KnownValues,
    SimulatedDevice,
    SimulatedTensor,
)
from tests.simulate.simulated_cells import cell
from tests.simulate.tensor_accounting import TensorAccounting


class Books(DeviceObserver):
    """What a device reports: the bytes of every storage, and which are live."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.live: set[int] = set()

    def allocated(self, size_bytes: int, arguments: Arguments) -> int:
        self.live.add(len(self.sizes))
        self.sizes.append(size_bytes)
        return len(self.sizes) - 1

    def freed(self, number: int) -> None:
        self.live.remove(number)

    @property
    def live_bytes(self) -> int:
        return sum(self.sizes[number] for number in self.live)


PROGRAMS: dict[str, Callable[[torch.device], list[Tensor]]] = {
    "products": lambda device: _products(*_matrices(device)),
    "reductions": lambda device: _reductions(_matrices(device)[0]),
    "views": lambda device: _views(_matrices(device)[0]),
    "in place": lambda device: _in_place(_matrices(device)[0]),
    "several results": lambda device: _several(_matrices(device)[0]),
    "lists": lambda device: _lists(*_matrices(device)),
    "types": lambda device: _types(_matrices(device)[0]),
}


def _matrices(device: torch.device) -> tuple[Tensor, Tensor]:
    first = torch.ones(3, 5, 8, device=device)
    return first, torch.ones(3, 4, 8, device=device)


def _products(first: Tensor, second: Tensor) -> list[Tensor]:
    return [
        first @ second.mT,
        torch.einsum("bij,bkj->bki", first, second),
        torch.einsum("bij,kj->bik", first, second[0]),
        functional.linear(first, second[0], second[0, :, 0]),
        first.mT * 2 + 1,
        (first[:, :4].transpose(0, 1) * second.transpose(0, 1)).exp(),
        torch.stack([first, first * 2], dim=-1).flatten(-2),
        torch.cat([first, second], dim=1),
    ]


def _reductions(x: Tensor) -> list[Tensor]:
    return [x.sum(), x.mean(-1, keepdim=True), x.amax(1), x.transpose(0, 2).sum((0, 1)), x.square().mean(), x.norm()]


def _views(x: Tensor) -> list[Tensor]:
    return [
        x.permute(2, 0, 1),
        x[:, 1::2],
        x.expand(2, 3, 5, 8)[1],
        x.transpose(0, 1).reshape(5, 24),
        x.transpose(0, 1).contiguous(),
        x.transpose(0, 1).clone(),
        *x.unbind(1),
        *x.chunk(2, -1),
        x.flatten(0, 1).unflatten(0, (5, 3)),
    ]


def _in_place(x: Tensor) -> list[Tensor]:
    y = x.clone()
    y[0].mul_(2)
    y.transpose(0, 1).add_(1)
    y[y > 2] = 0
    return [y, y.uniform_(), y.masked_fill_(y < 1, 3.0), y.t_() if y.dim() == 2 else y]


def _several(x: Tensor) -> list[Tensor]:
    flat = x.flatten(0, 1)
    targets = torch.zeros(15, dtype=torch.long, device=x.device)
    return [
        *functional.layer_norm(flat, (8,)).max(-1),
        functional.cross_entropy(flat, targets),
        *torch.topk(flat, 3),
        functional.embedding(targets, flat),
        functional.scaled_dot_product_attention(x[None], x[None], x[None]),
    ]


def _lists(first: Tensor, second: Tensor) -> list[Tensor]:
    lists = [first, second, first.mT.contiguous().mT]
    torch._foreach_mul_(lists, 2.0)
    return [
        *torch._foreach_sqrt(lists),
        *torch._foreach_add(lists, lists, alpha=2),
        *torch._foreach_mul(lists, [1.0, 2, 3]),
    ]


def _types(x: Tensor) -> list[Tensor]:
    whole = x.long()
    return [
        x.bfloat16(),
        x.double() * 2,
        whole + 1,
        whole + 1.0,
        whole + True,
        x.half() * x,
        x > 0,
        whole / 2,
        x.bfloat16() * torch.tensor(2.0),
        x.to(torch.float32),
    ]


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_have_the_shapes_strides_and_types_of_real_ones(name: str) -> None:
    program = PROGRAMS[name]
    real = program(torch.device("cpu"))
    with SimulatedDevice(Books()):
        for _ in range(2):  # the second time nothing is worked out any more
            simulated = program(DEVICE)
            assert all(isinstance(tensor, SimulatedTensor) for tensor in simulated)
            assert [_description(tensor) for tensor in simulated] == [_description(tensor) for tensor in real]


def _description(tensor: Tensor) -> tuple[object, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.storage_offset(), tensor.untyped_storage().nbytes()


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_live_while_a_program_runs_is_what_is_live_when_it_runs_for_real(name: str) -> None:
    program = PROGRAMS[name]
    real = TensorAccounting()
    with real:
        kept = program(torch.device("cpu"))
        real_bytes = real.live_bytes
    books = Books()
    with SimulatedDevice(books):
        kept_too = program(DEVICE)
        simulated_bytes = sum(round_to_block(books.sizes[number]) for number in books.live)
        assert len(kept) == len(kept_too)
    assert simulated_bytes == real_bytes
    assert real.live_bytes == real_bytes


def test_a_storage_lives_as_long_as_any_view_of_it() -> None:
    books = Books()
    with SimulatedDevice(books):
        x = torch.empty(1000, device=DEVICE)
        view = x[10:20].reshape(2, 5).mT
        del x
        assert books.live_bytes == 4000
        del view
        assert books.live_bytes == 0


def test_nothing_but_the_graph_keeps_what_backward_needs() -> None:
    books = Books()
    with SimulatedDevice(books):
        x = torch.empty(1000, device=DEVICE, requires_grad=True)
        y = x.exp().sum()
        assert books.live_bytes == 4000 + 4000 + 4
        y.backward()
        assert books.live_bytes == 4000 + 4 + 4000
        assert x.grad is not None
        assert x.grad.shape == x.shape
        del y
        x.grad = None
        assert books.live_bytes == 4000


def test_operators_in_place_allocate_nothing() -> None:
    books = Books()
    with SimulatedDevice(books):
        x = torch.empty(100, device=DEVICE)
        for _ in range(2):
            x.add_(1).mul_(x).clamp_(0, 1).copy_(torch.zeros(100)).zero_()
            torch._foreach_add_([x, x], 1)
    assert len(books.sizes) == 1


def test_what_stays_on_the_host_is_real() -> None:
    books = Books()
    with SimulatedDevice(books):
        counter = torch.tensor(1.0)
        counter += 2
        ids = torch.arange(4)
        assert counter.item() == 3.0
        assert ids.tolist() == [0, 1, 2, 3]
        assert not isinstance(ids, SimulatedTensor)
        moved = ids.to(DEVICE)
        assert isinstance(moved, SimulatedTensor)
        assert moved.device == DEVICE
        assert (moved * counter).dtype == torch.float32
    assert books.sizes[0] == 32


def test_torch_itself_reads_zero_where_there_is_no_value() -> None:
    with SimulatedDevice(Books()):
        x = torch.ones(3, device=DEVICE)
        scaler = torch.amp.GradScaler(DEVICE.type)  # asks whether a gradient was infinite before it takes a step
        weight = torch.nn.Parameter(x)
        optimizer = torch.optim.SGD([weight], lr=0.1)
        scaler.scale((weight * x).sum()).backward()  # type: ignore[no-untyped-call]
        scaler.step(optimizer)
        scaler.update()
        assert weight.grad is not None
        with torch.autograd.graph.save_on_cpu():
            squared = (weight * weight).sum()
        squared.backward()  # type: ignore[no-untyped-call]


READS = ("x.sum().item()", "bool((x > 0).any())", "x.cpu()", "x.to('cpu', torch.float64)", "torch.ones(3).copy_(x)")


@pytest.mark.parametrize("read", READS)
def test_other_code_that_reads_a_value_is_refused(read: str) -> None:
    """Also a library's that sysbench itself calls, such as a model of torchvision."""
    installed = Path(torch.__file__).parents[1]
    step = compile("eval(model, values)", str(DIRECTORY / "lab" / "step.py"), "eval")
    for folder in (installed / "torchvision", installed / "torchao" / "optim", Path("/home/me/torch")):
        model = compile(read, folder / "functional.py", "eval")
        with SimulatedDevice(Books()), pytest.raises(UnavailableError, match="reads a tensor value"):
            eval(step, {"model": model, "values": {"torch": torch, "x": torch.ones(3, device=DEVICE)}})  # noqa: S307


def test_values_that_follow_from_constants_and_inputs_can_be_read() -> None:
    host = torch.tensor([[3, 1, 2], [0, 5, 4]])
    with SimulatedDevice(Books()) as device:
        device.values = KnownValues()
        ids, places = host.to(DEVICE), torch.arange(3, device=DEVICE)
        assert (ids == 5).any().item() is True
        assert torch.linspace(0, 1, 5, device=DEVICE)[3].item() == 0.75
        assert (places[None] + ids).cumsum(-1).tolist() == (torch.arange(3)[None] + host).cumsum(-1).tolist()
        places[1:] = 7  # through a view
        assert places.cpu().tolist() == [0, 7, 7]
        places.random_()
        for unknown in (places[0], torch.empty(2, device=DEVICE).sum(), torch.randn(3, device=DEVICE).sum()):
            with pytest.raises(UnavailableError, match="reads a tensor value"):
                unknown.item()
        large = torch.ones(1 << 21, device=DEVICE)
        with pytest.raises(UnavailableError, match="reads a tensor value"):
            large.sum().item()


def test_moving_a_tensor_to_where_it_is_allocates_nothing() -> None:
    books = Books()
    with SimulatedDevice(books):
        x = torch.empty(100, device=DEVICE)
        moved = x.to(DEVICE)
        assert moved.untyped_storage()._cdata == x.untyped_storage()._cdata
        assert len(books.sizes) == 1
        assert x.to(DEVICE, torch.bfloat16).dtype == torch.bfloat16
        assert books.sizes == [400, 200]


def test_a_result_whose_shape_depends_on_values_is_refused_in_one_line() -> None:
    with SimulatedDevice(Books()):
        x = torch.ones(3, device=DEVICE)
        with pytest.raises(UnavailableError, match=r"^aten\.nonzero\.default cannot be simulated"):
            x.nonzero()


def test_shapes_that_do_not_go_together_are_refused() -> None:
    with SimulatedDevice(Books()):
        x = torch.ones(3, 4, device=DEVICE)
        with pytest.raises(RuntimeError, match="broadcast"):
            x + torch.ones(5, device=DEVICE)


def test_simulated_tensors_are_of_no_use_once_their_device_is_left() -> None:
    with SimulatedDevice(Books()):
        x = torch.ones(3, device=DEVICE)
    with pytest.raises(RuntimeError, match="outside the SimulatedDevice"):
        x + 1


def test_a_simulation_leaves_the_process_as_it_was() -> None:
    def state() -> tuple[object, ...]:
        keys = ("AutocastCPU", "AutogradMeta")
        operators = ("bmm", "einsum", "exp", "cross_entropy_loss", "scaled_dot_product_attention", "softmax.int")
        return (
            [
                torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", key)
                for name in operators
                for key in keys
            ],
            [sorted(torch._C._dispatch_get_registrations_for_dispatch_key(key)) for key in keys],
            torch._C._len_torch_dispatch_stack(),
            torch.is_autocast_enabled("cpu"),
            torch.is_grad_enabled(),
            torch.get_rng_state().tolist(),
            dict(KINDS),
            gc.isenabled(),
            SimulatedTensor.inferring_shapes,
        )

    before = state()
    record(cell(precision="bf16", attention="flash"), "train", Platform.of(Gpu("GPU", 2**33)))
    with pytest.raises(UnavailableError):
        record(cell(attention="flash"), "train", Platform.of(Gpu("GPU", 2**33)))
    assert state() == before
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.einsum("ij,kj->ik", torch.ones(2, 3), torch.ones(4, 3)).dtype == torch.bfloat16
        assert torch.ones(3, dtype=torch.bfloat16).exp().dtype == torch.bfloat16
