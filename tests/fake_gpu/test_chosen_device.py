"""Everything that a command does on a GPU, it does on the one that was named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fake_gpu.fake import FakeGpu

ATTENTION = ("attention", "--impl=sdpa-flash", "--bf16", "--dim=64", "--seq=256", "--repeats=3", "--warmup=1")

MODEL = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = torch.nn.Embedding(50, 64), torch.nn.Linear(64, 50)

    def forward(self, tokens):
        return self.head(self.embedding(tokens)) + torch.ones(1).cuda()
"""


@pytest.mark.parametrize(
    "words",
    [
        ("calibrate", "launch", "--budget=1"),
        ATTENTION,
        ("time", "--model=model.py:Model", "--ctx=16", "--batch=2", "--steps=2", "--warmup=1"),
        ("accum", "autocast,norm"),
    ],
    ids=lambda words: words[0],
)
def test_nothing_is_launched_on_another_gpu(words: tuple[str, ...], fake_gpu: FakeGpu, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    ran = fake_gpu.answered(*words, "--device=cuda:1", "--json=-", cwd=tmp_path, devices=2)
    assert ran.code == 0, ran.err
    assert ran.report.count(device=1) > 0
    assert ran.report.count(device=0) == 0
