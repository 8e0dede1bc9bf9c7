"""A search that also tries torch.compile: at last, few times, and each time as the whole compiled step."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from sysbench.commands.fit.search.changes import Change
from sysbench.commands.fit.search.rules import Memory, Outcome, Request, Search
from sysbench.commands.memory.spec import MemorySpec
from sysbench.simulate.gpu import Gpu
from sysbench.simulate.memory import simulate
from sysbench.spec import hardware
from tests.cli.running import answered

WORDS = (
    *("--layers=1", "--d-model=64", "--heads=2", "--d-ff=256", "--vocab=500", "--ctx=256", "--batch=4"),
    *("--on=h100", "--max-ranks=1"),
)
ONLY_COMPILING = (
    "--keep=batch,attention,optimizer,precision,checkpoint,cross-entropy,optimizer-in-backward,allocator,lora"
)


def test_compiling_is_tried_at_last_alone_and_with_the_first_row() -> None:
    saving = Change("checkpoint", (("checkpoint", "full"),), costs_time=True)
    compiled = Change("execution", (("execution", "compiled"),))
    search = Search({"gpu": Memory(100, 98)}, [saving], last=compiled)
    needed = {(): 120, (saving,): 90, (compiled,): 100, (saving, compiled): 80}
    asked: list[Request] = []
    for strands in search.stages():
        for strand in strands:
            request = next(strand, None)
            while request is not None:
                asked.append(request)
                size, seconds = needed[request[0]], 1.0 + (saving in request[0])
                try:
                    request = strand.send(Outcome(size, size, 10, seconds, True))
                except StopIteration:
                    request = None
    assert [combination for combination, *_ in asked[-2:]] == [(compiled,), (saving, compiled)]
    assert not any(compiled in combination for combination, *_ in asked[:-2])
    assert all(is_whole for *_, is_whole in asked[-2:])


def test_compiled_suggestion_needs_what_the_compiled_step_needs(tmp_path: Path) -> None:
    ran = answered("fit", *WORDS, ONLY_COMPILING, "--faster", "--try-compile", "--json=-", cwd=tmp_path)
    (cell,) = json.loads(ran.out)["cells"]
    asked, compiled = cell["trials"]
    assert (asked["changes"], compiled["changes"]) == ({}, {"execution": "compiled"})
    assert compiled["compile_s"] > 0
    assert "compile_s" not in asked

    shape = {"layers": (1,), "d_model": (64,), "heads": (2,), "d_ff": (256,), "vocab": (500,)}
    (memory,) = MemorySpec(**shape, ctx=(256,), batch=(4,), mode=("train",), execution=("compiled",)).cells()
    gpu = Gpu.of(hardware.by_name("h100"))
    whole = simulate(memory.step.step_with(device="cuda"), "train", gpu, origins=False)
    assert compiled["allocated_peak_bytes"] == whole.allocated_peak_bytes < asked["allocated_peak_bytes"]
    assert compiled["margin_bytes"] == whole.verdict.margin_bytes
    assert compiled["by_category"] == dict(whole.by_category)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--compile"], "--try-compile compiles few of them"),
        (["--compile", "--try-compile"], "drop it, or --execution compiled"),
        (["--table", "--try-compile"], "--table shows limits in place of changes, which --try-compile needs"),
    ],
)
def test_a_search_among_compiled_steps_is_refused_with_what_can_be_asked(
    words: list[str], said: str, tmp_path: Path
) -> None:
    ran = answered("fit", *WORDS, *words, cwd=tmp_path)
    assert ran.code == 2
    assert said in re.sub(r"\s+", " ", ran.out + ran.err)
