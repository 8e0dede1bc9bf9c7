"""Kernels of convolutions and recurrent layers: steps against published ones, and work against torch's counters."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from sysbench.commands.time.spec import TimeSpec
from sysbench.predict.rates import gpu, typical_host
from sysbench.predict.step import predict
from sysbench.predict.trace import Kernel, Stage, Trace, TraceWriter
from sysbench.predict.tracing import trace
from sysbench.simulate.gpu import Gpu

H100 = Gpu("GPU", 2**50, (9, 0))
HERE = str(Path(__file__).parent)


class BasicBlock(nn.Module):
    def __init__(self, before: int, channels: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(before, channels, 3, stride, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, 1, 1, bias=False), nn.BatchNorm2d(channels),
        )  # fmt: skip
        self.other = nn.Sequential()
        if stride > 1:
            self.other = nn.Sequential(nn.Conv2d(before, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.relu(self.first(x) + self.other(x), inplace=True)


class ResNet18(nn.Sequential):
    def __init__(self) -> None:
        widths = (64, 64, 128, 256, 512)
        blocks = [
            BasicBlock(widths[i - (n == 0)], widths[i], 2 if i > 1 and n == 0 else 1)
            for i in range(1, 5)
            for n in (0, 1)
        ]
        super().__init__(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1),
            *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000),
        )  # fmt: skip


class ConvNextBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + (self.scale * self.down(nn.functional.gelu(self.up(y)))).permute(0, 3, 1, 2)


class ChannelNorm(nn.LayerNorm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNextTiny(nn.Sequential):
    def __init__(self) -> None:
        stages: list[nn.Module] = [nn.Conv2d(3, 96, 4, 4), ChannelNorm(96)]
        for width, blocks in ((96, 3), (192, 3), (384, 9), (768, 3)):
            if width > 96:
                stages += [ChannelNorm(width // 2), nn.Conv2d(width // 2, width, 2, 2)]
            stages += [ConvNextBlock(width) for _ in range(blocks)]
        super().__init__(*stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(768), nn.Linear(768, 1000))


def traced_and_counted(model: str, *inputs: str, **fields: object) -> tuple[Trace, int]:
    options = {"app_dir": HERE, "model": f"test_operators:{model}" if ":" not in model else model, **fields}
    (cell,) = TimeSpec(**{"device": "cuda", "ctx": 16, **options}, input=list(inputs)).cells()
    step, recording = trace(cell, H100)
    assert recording.own_model is not None
    return step, sum((recording.own_model.flops or {}).values())


def traced(model: str, *inputs: str, **fields: object) -> Trace:
    return traced_and_counted(model, *inputs, **fields)[0]


@pytest.mark.parametrize(
    ("model", "card", "mode", "batch", "published_s"),
    [  # pytorch-image-models (Apache-2.0), results/: amp and NCHW, in training with torch 1.12, else with torch 2.4
        ("ResNet18", "rtx-3090", "train", 512, 0.184877),
        ("ResNet18", "rtx-4090", "inference", 1024, 0.07562),
        ("ConvNextTiny", "rtx-3090", "train", 256, 0.313859),
    ],
)
def test_steps_of_convolutions_take_about_as_long_as_published(
    model: str, card: str, mode: str, batch: int, published_s: float
) -> None:
    step = traced(model, "float32[B,3,224,224]", batch=batch, precision="fp16", mode=mode)
    said = predict(step, gpu(card), typical_host())
    assert said.withheld is None
    assert said.time.point_s == pytest.approx(published_s, rel=0.2)


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        ("Conv1d", {"dilation": 2}), ("Conv2d", {"stride": 2, "groups": 2}), ("Conv3d", {}),
        ("ConvTranspose2d", {"stride": 2, "bias": "false"}), ("ConvTranspose2d", {"groups": 4}),
    ],
)  # fmt: skip
def test_convolutions_have_the_flops_of_torchs_counter(layer: str, words: dict[str, object]) -> None:
    size = [9] * int(layer[-2])
    given = {"in_channels": 8, "out_channels": 12, "kernel_size": 3, **words}
    arguments = [f"{name}={value}" for name, value in given.items()]
    described = f"float32[B,8,{','.join(map(str, size))}]"
    step, counted = traced_and_counted(f"torch.nn:{layer}", described, batch=2, model_arg=arguments)
    with FlopCounterMode(display=False) as counter:
        getattr(nn, layer)(**{**given, "bias": "bias" not in words})(torch.ones(2, 8, *size))
    # The gradient of the weights takes as many again; of groups, torch's counter counts too many in backward.
    assert step.flops == counted == 2 * counter.get_total_flops()


def test_a_recurrent_layer_is_one_call_with_a_product_for_each_time_step() -> None:
    arguments = ["input_size=32", "hidden_size=16", "num_layers=2", "bidirectional=true"]
    step = traced("torch.nn:LSTM", "float32[64,B,32]", batch=4, model_arg=arguments)
    passes = (phase for phase in step.phases if phase.name in ("forward", "backward"))
    issued = Counter(step.operators[each] for phase in passes for each in phase.operators)
    assert issued["aten::_cudnn_rnn"] == issued["aten::_cudnn_rnn_backward"] == 1
    assert sum(issued.values()) < 64  # fewer operators than time steps: the host is no limit
    rows, gates, directions = 64 * 4, 4 * 16, 2
    products = directions * rows * gates * (32 + 16 + (2 * 16 + 16))
    assert step.flops == 3 * 2 * products  # forward, and twice as much in backward


def test_unknown_work_counts_by_its_flops_however_little_time_its_bytes_take() -> None:
    known = Kernel("gemm", "mm", "bf16", 1 << 25, 1 << 20, 10**12, (1, 4096, 4096, 4096), "TN")
    for flops, withheld in ((10**10, False), (10**12, True)):
        writer = TraceWriter()
        writer.add_operator(Stage("forward"), "operator", [known])
        writer.add_operator(
            Stage("forward"), "operator", [Kernel("unknown", "theirs", "bf16", 1 << 15, 1 << 14, flops)]
        )
        assert (predict(writer.trace(), gpu("h100"), typical_host()).withheld is not None) is withheld
