"""`sysbench doctor`: what this machine is, and what sysbench itself costs on it."""

from __future__ import annotations

import json
import sys

from tests.gpu.evidence.promises import Promise, none_of
from tests.gpu.evidence.work import Part, Work

UNKNOWN = "things about torch that the doctor does not find out"
COSTS = {part: f"a step with the {part} over one without" for part in ("dashboard", "sampler")}
ROUNDS = 2


def _run(work: Work) -> None:
    ran = work.command(sys.executable, "-m", "sysbench", "doctor", "--json")
    record = json.loads(ran.out.read_text())
    work.numbers["record"] = {name: record[name] for name in ("nvml", "torch", "advice")}
    work.see(UNKNOWN, len(record["torch"]["unknown"]), "; ".join(record["torch"]["unknown"].values())[:500])
    prospects = [(each["what"], each["works"], each["reason"]) for each in record["prospects"]]
    work.table("What the doctor expects to work", ("what", "works", "why"), prospects)
    if work.rehearsal or not work.has("what sysbench costs", 80):
        return
    ran = work.command(sys.executable, "-m", "tests.bench.self_cost", "--json", f"--rounds={ROUNDS}")
    work.numbers["self_cost"] = cost = json.loads(ran.out.read_text())
    arms = {arm["part"]: arm for arm in cost["arms"]}
    rows = [[part, f"{arm['ratio'] - 1:+.2%}", str(len(arm["with_s"]))] for part, arm in arms.items()]
    work.table(f"What sysbench costs {cost['workload']}", ("part", "of a step", "rounds"), rows)
    for part, name in COSTS.items():
        if part in arms:
            work.see(name, arms[part]["ratio"], cost["workload"])


PART = Part(
    "doctor",
    "the doctor, and what sysbench costs",
    110,
    _run,
    # A step launched by the host in a millisecond feels everything; what is promised of steps is within 0.5%.
    (none_of(UNKNOWN), *(Promise(name, "ratio", high=1.005) for name in COSTS.values())),
    limit_s=200,
)
