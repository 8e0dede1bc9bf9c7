"""Simulated memory is measured memory, byte for byte: a sample of `tests/bench/fake_gpu_memory.py`.

It covers each value of each axis with most values of the others; the script there compares more, and other versions.
"""

from __future__ import annotations

import pytest

from tests.fake_gpu.fake import FakeGpu
from tests.fake_gpu.memory import Group, own, pairs

SMALL = ("--size=tiny", "--batch=2")
GROUPS = (
    Group((*SMALL, "--ctx=64", "--precision=fp32,bf16", "--mode=train", "--attention=naive,sdpa")),
    Group((*SMALL, "--ctx=128", "--precision=bf16", "--mode=train", "--attention=flash,cudnn,math")),
    Group((*SMALL, "--ctx=96", "--mode=inference,forward,forward-backward", "--attention=efficient")),
    Group((*SMALL, "--ctx=64", "--mode=train", "--optimizer=for-loop,fused", "--grad-accum=1,2")),
    Group(
        (*SMALL, "--ctx=128", "--bf16", "--mode=train"),
        {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:20,roundup_power2_divisions:4"},
        ("a100-80gb", "8.0"),
    ),
    Group((*SMALL, "--ctx=64", "--mode=train"), {"TORCH_CUBLAS_WORKSPACE_CACHE": "1"}),
    Group((*SMALL, "--ctx=64", "--mode=train", "--bf16", "--checkpoint=full,every-2,selective")),
    Group((*SMALL, "--ctx=64", "--mode=train", "--attention=sdpa", "--checkpoint=selective,layers.*.attention")),
    Group((*SMALL, "--ctx=64", "--mode=train", "--bf16", "--cross-entropy=chunked-50,chunked")),
    Group((*SMALL, "--ctx=128", "--mode=train", "--allocator=default,expandable,max_split_size_mb:20")),
    Group((*SMALL, "--ctx=64", "--mode=train", "--precision=fp32,bf16", "--lora=8", "--adapter=lora,dora")),
    Group((*SMALL, "--ctx=64", "--mode=train", "--precision=bf16-true", "--optimizer=foreach,sgd,adafactor,muon")),
    Group((*SMALL, "--ctx=64", "--mode=train", "--optimizer=foreach,sgd", "--optimizer-in-backward=on,off")),
    Group((*SMALL, "--ctx=64", "--mode=train", "--bf16", "--offload=optimizer", "--grad-accum=1,2")),
    own("NanoGpt", "--bf16", "--offload=optimizer", "--optimizer=fused"),
    own("NanoGpt", "--precision=bf16-true", "--optimizer=fused,muon"),
    Group((*SMALL, "--ctx=64", "--mode=train", "--precision=fp16-true", "--checkpoint=none,full"), {}, ("t4", "7.5")),
    own("Llama", "--precision=fp16-true", "--optimizer=fused,adafactor"),
    own("NanoGpt", "--checkpoint=none,full", "--cross-entropy=full,chunked-40"),
    own("Llama", "--bf16", "--checkpoint=none,full", "--cross-entropy=full,chunked-40"),
    *(own(name, "--precision=fp32,bf16") for name in ("NanoGpt", "Llama", "Grouped", "Adapted")),
    # Masks that are padded, norms and convolutions of strided inputs, products of columns and rows.
    *(own(name, "--batch=3", "--ctx=100", "--precision=fp32") for name in ("Encoder", "Mamba", "Biased", "Strided")),
)
OF_SLOW_PACKAGES = (
    Group((*SMALL, "--ctx=64", "--mode=train", "--precision=fp32,bf16", "--lora=8", "--checkpoint=full")),
    Group((*SMALL, "--ctx=64", "--mode=train", "--lora=3", "--lora-targets=all-linear,lm_head+w1")),
    Group((*SMALL, "--ctx=64", "--mode=train", "--lora=8", "--offload=optimizer", "--optimizer=for-loop,foreach")),
    Group((*SMALL, "--ctx=64", "--mode=train", "--precision=fp16-true", "--lora=8"), {}, ("t4", "7.5")),
    own("NanoGpt", "--bf16", "--lora=4"),
    Group((*SMALL, "--ctx=64", "--mode=train", "--precision=fp8,fp8-rowwise", "--checkpoint=none,full")),
)
"""peft and torchao, which each worker imports anew on the fake GPU: that takes longer than the steps."""
OF_BITSANDBYTES = (
    Group((*SMALL, "--ctx=64", "--mode=train", "--precision=fp32,bf16-true", "--optimizer=adamw-8bit-paged")),
    Group(
        (
            *("--d-model=256", "--d-ff=512", "--layers=2", "--heads=4", "--vocab=1000", "--ctx=512", "--batch=4"),
            *("--mode=train", "--precision=bf16-true", "--lora=8", "--lora-targets=all-linear", "--quantize=nf4"),
        )
    ),
    Group(
        (
            *("--d-model=256", "--d-ff=512", "--layers=2", "--heads=4", "--vocab=1000", "--ctx=512", "--batch=4"),
            *("--mode=train", "--precision=bf16-true,fp32", "--lora=8", "--lora-targets=q", "--quantize=int8"),
        )
    ),
)


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.name)
def test_simulated_memory_is_measured_memory(group: Group, fake_gpu: FakeGpu) -> None:
    found = pairs(fake_gpu, group)
    assert found
    assert all(pair.is_comparable for pair in found), [pair.outcomes for pair in found]
    assert {pair.name: pair.differences() for pair in found if pair.differences()} == {}


@pytest.mark.slow
@pytest.mark.parametrize("group", OF_SLOW_PACKAGES, ids=lambda group: group.name)
def test_simulated_memory_with_adapters_and_in_fp8_is_measured_memory(group: Group, fake_gpu: FakeGpu) -> None:
    test_simulated_memory_is_measured_memory(group, fake_gpu)


@pytest.mark.slow
@pytest.mark.parametrize("group", OF_BITSANDBYTES, ids=lambda group: group.name)
def test_the_memory_of_bitsandbytes_is_modelled_to_the_byte(group: Group, fake_gpu: FakeGpu) -> None:
    pytest.importorskip("bitsandbytes")
    test_simulated_memory_is_measured_memory(group, fake_gpu)
