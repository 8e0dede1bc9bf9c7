"""Autocast of simulated tensors, against the lists that torch's own header and dispatcher have."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from sysbench.simulate.cuda.autocast import CUDA_RULES, cuda_autocast
from sysbench.simulate.tensors import DEVICE, SimulatedDevice
from tests.simulate.test_tensors import Books

HEADER = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"

BEYOND_THE_HEADER = {"cudnn_convolution", "cudnn_convolution_transpose"}
"""Registered in autocast_mode.cpp beside the lists of the header."""

MACROS = {
    "LOWER_PRECISION_FP": "lower_precision",
    "FP32": "fp32",
    "FP32_SET_OPT_DTYPE": "fp32_result",
    "PROMOTE": "promote",
}


OF_THE_CUDA_BUILD = {"_cudnn_rnn", "linalg_matrix_sqrth"}
"""Registered where torch was built with CUDA; no Transformer calls them, and no simulation knows them."""


SINCE_LATER = {"rms_norm"}
"""In the lists of torch 2.13, and not in those of 2.11."""


def _by_names(name: str) -> bool:
    """Overloads by names of dimensions, gone since 2.13."""
    return "imname" in name or "names_" in name


def _of_the_dispatcher() -> set[str]:
    registered = torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCUDA")
    names = {name.removeprefix("aten::") for name in registered}
    return {name for name in names if not _by_names(name)}


def test_every_operator_that_cuda_autocasts_has_a_rule() -> None:
    rules: set[str] = set().union(*(getattr(CUDA_RULES, field.name) for field in fields(CUDA_RULES)))
    assert _of_the_dispatcher() - rules - OF_THE_CUDA_BUILD == set()
    beyond = rules - _of_the_dispatcher() - SINCE_LATER
    assert {name for name in beyond if torch._C._dispatch_has_kernel(f"aten::{name}")} == set()


@pytest.mark.skipif(not HEADER.exists(), reason="this torch came without its headers")
@pytest.mark.parametrize("macro", MACROS)
def test_the_rules_are_those_of_torchs_header(macro: str) -> None:
    body = re.search(rf"#define AT_FORALL_{macro}\(_\)(.*?)\n\n", HEADER.read_text(), flags=re.DOTALL)
    assert body is not None
    listed = {".".join(re.split(r",\s*", names)) for names in re.findall(r"_\(([\w, ]+)\)", body[1])}
    without_names = {name for name in listed if not _by_names(name)}
    assert getattr(CUDA_RULES, MACROS[macro]) - BEYOND_THE_HEADER - (SINCE_LATER - listed) == without_names


class Toy(nn.Module):
    """Linear, ReLU, layer norm, linear: the model of the course's question about mixed precision."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(6, 10, bias=False)
        self.norm = nn.LayerNorm(10)
        self.fc2 = nn.Linear(10, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        self.seen = {"fc1": self.fc1(x).relu()}
        self.seen["norm"] = self.norm(self.seen["fc1"])
        logits: Tensor = self.fc2(self.seen["norm"])
        return logits


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_types_are_those_that_a_model_has_on_cuda(dtype: torch.dtype) -> None:
    with SimulatedDevice(Books()), cuda_autocast():
        with DEVICE:
            model, x = Toy(), torch.empty(3, 6)
        with torch.autocast("cpu", dtype):
            logits = model(x)
            loss = functional.cross_entropy(logits, torch.zeros(3, dtype=torch.long, device=DEVICE))
        loss.backward()
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert model.seen["fc1"].dtype == dtype
    assert model.seen["norm"].dtype == torch.float32
    assert logits.dtype == dtype
    assert loss.dtype == torch.float32
    assert {parameter.grad.dtype for parameter in model.parameters() if parameter.grad is not None} == {torch.float32}
    assert all(parameter.grad is not None for parameter in model.parameters())


NARROW = torch.bfloat16
EXPRESSIONS: dict[str, tuple[Any, torch.dtype]] = {
    "matmul of fp32": (lambda wide, narrow: wide @ wide, NARROW),
    "einsum of fp32": (lambda wide, narrow: torch.einsum("ij,jk->ik", wide, wide), NARROW),
    "linear": (lambda wide, narrow: functional.linear(wide, wide), NARROW),
    "attention": (lambda wide, narrow: functional.scaled_dot_product_attention(wide, narrow, wide), NARROW),
    "exp": (lambda wide, narrow: narrow.exp(), torch.float32),
    "square": (lambda wide, narrow: narrow.square(), torch.float32),
    "rsqrt": (lambda wide, narrow: narrow.rsqrt(), torch.float32),
    "softmax": (lambda wide, narrow: narrow.softmax(-1), torch.float32),
    "softmax with a type": (lambda wide, narrow: narrow.softmax(-1, dtype=NARROW), NARROW),
    "log_softmax": (lambda wide, narrow: functional.log_softmax(narrow, -1), torch.float32),
    "sum": (lambda wide, narrow: narrow.sum(), torch.float32),
    "sum over a dimension": (lambda wide, narrow: narrow.sum(-1), torch.float32),
    "mean": (lambda wide, narrow: narrow.mean(-1), NARROW),
    "cumsum": (lambda wide, narrow: narrow.cumsum(0), torch.float32),
    "norm": (lambda wide, narrow: narrow.norm(), torch.float32),
    "layer_norm": (lambda wide, narrow: functional.layer_norm(narrow, (8,)), torch.float32),
    "rms_norm": (lambda wide, narrow: functional.rms_norm(narrow, (8,)), torch.float32),
    "mse_loss": (lambda wide, narrow: functional.mse_loss(narrow, narrow), torch.float32),
    "addcmul of both": (lambda wide, narrow: torch.addcmul(narrow, narrow, wide), torch.float32),
    "addcmul of narrow": (lambda wide, narrow: torch.addcmul(narrow, narrow, narrow), NARROW),
    "silu": (lambda wide, narrow: functional.silu(narrow), NARROW),
    "product of both": (lambda wide, narrow: wide * narrow, torch.float32),
    "cat of both": (lambda wide, narrow: torch.cat([wide, narrow]), torch.float32),
    "stack of narrow": (lambda wide, narrow: torch.stack([narrow, narrow]), NARROW),
    "matmul of fp64": (lambda wide, narrow: wide.double() @ wide.double(), torch.float64),
}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_an_operator_gives_the_type_that_it_gives_on_cuda(name: str) -> None:
    expression, expected = EXPRESSIONS[name]
    with SimulatedDevice(Books()), cuda_autocast():
        wide = torch.empty(8, 8, device=DEVICE)
        narrow = wide.to(NARROW)
        with torch.autocast("cpu", NARROW):
            assert expression(wide, narrow).dtype == expected
            with torch.autocast("cpu", enabled=False):
                assert (wide @ wide).dtype == torch.float32
        assert (wide @ wide).dtype == torch.float32


def test_a_parameter_is_cast_once_and_its_cast_is_kept_until_autocast_is_over() -> None:
    books = Books()
    with SimulatedDevice(books), cuda_autocast(), torch.no_grad():
        weight, x = nn.Parameter(torch.empty(100, 100, device=DEVICE)), torch.empty(100, 100, device=DEVICE)
        before = books.live_bytes
        with torch.autocast("cpu", NARROW):
            for _ in range(3):
                x @ weight
            assert books.live_bytes - before == weight.numel() * 2
            assert books.sizes.count(weight.numel() * 2) == 1 + 3 + 3  # one of the weight; of x and results each time
        assert books.live_bytes == before


def test_what_is_unsafe_to_autocast_is_refused() -> None:
    with SimulatedDevice(Books()), cuda_autocast(), torch.autocast("cpu", NARROW):
        x = torch.empty(3, device=DEVICE)
        with pytest.raises(RuntimeError, match="unsafe to autocast"):
            functional.binary_cross_entropy(x, x)


def test_tensors_of_the_host_are_left_alone() -> None:
    with SimulatedDevice(Books()), cuda_autocast(), torch.autocast("cpu", NARROW):
        assert (torch.ones(3, 3) @ torch.ones(3, 3)).dtype == torch.float32


def test_operators_that_a_package_registers_for_autocast_are_left_alone() -> None:
    with torch.library._scoped_library("theirs", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: 2 * x, "AutocastCPU")
        with cuda_autocast():
            pass
        assert torch._C._dispatch_has_kernel_for_dispatch_key("theirs::twice", "AutocastCPU")
