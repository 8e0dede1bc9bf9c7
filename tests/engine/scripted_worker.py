"""A worker without torch that does what a script says: a real process, so that its deaths are real.

The script is JSON in the environment: `start`, `ceiling`, `threads` (torch's, and those that a probe chooses), and by
context length what becomes of a cell, or a list of that by rank. It speaks the protocol in plain dictionaries, which
starts in a fraction of the time and shows that the protocol is no more than JSON.
"""

from __future__ import annotations

import faulthandler
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any, NoReturn

SCRIPT_VARIABLE = "SYSBENCH_TEST_SCRIPT"

Cell = dict[str, Any]


class Line:
    """The connection to the engine."""

    def __init__(self) -> None:
        self.connection = Client(os.environ["SYSBENCH_ADDRESS"], authkey=bytes.fromhex(os.environ["SYSBENCH_AUTHKEY"]))

    def say(self, event: str, **fields: Any) -> None:
        self.connection.send_bytes(json.dumps({"event": event, "at_s": time.time(), **fields}).encode())

    def commands(self) -> Iterator[dict[str, Any]]:
        while (command := json.loads(self.connection.recv_bytes()))["command"] != "exit":
            yield command

    def step(self, cell: Cell, index: int = 0) -> None:
        sample = {"wall_s": 0.001}
        self.say("step_measured", cell=_key(cell), index=index, warmup=False, phases={"forward": sample}, step=sample)

    def finish(self, cell: Cell, outcome: str, detail: str | None = None) -> None:
        self.say("cell_finished", cell=_key(cell), outcome=outcome, detail=detail)


def main() -> None:
    script = json.loads(os.environ[SCRIPT_VARIABLE])
    _start(script.get("start", "ready"))
    line = Line()
    versions = {"torch": script.get("torch", "2.13.0"), "threads": script.get("threads", [1])[0], "import_s": 0.0}
    unknown = dict.fromkeys(("cuda", "cudnn", "triton", "allocator"))
    line.say("worker_ready", pid=os.getpid(), torch={**versions, **unknown}, devices=script["devices"])
    if script.get("idle") == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    for command in line.commands():
        if command["command"] == "measure_ceiling":
            _ceiling(line, command, script.get("ceiling", "ok"))
        elif command["command"] == "probe_threads":
            _probe(line, *script["threads"])
        else:
            act = script["cells"].get(str(command["cell"]["ctx"]), "ok")
            if isinstance(act, list):
                act = act[command["rank"]["number"]]
            if act == "tells its threads":
                line.finish(command["cell"], "ok", f"{command['threads']} threads")
            elif act == "continues":
                line.step(command["cell"], len(command["earlier_s"]))
                line.finish(command["cell"], "ok", f"after {len(command['earlier_s'])} steps")
            else:
                _ACTS[act](line, command["cell"])
    if script.get("end") == "lingers":
        time.sleep(600)


def _key(cell: Cell) -> str:
    """`ModelCell.key`."""
    canonical = json.dumps(cell, sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def _start(how: str) -> None:
    if how == "dies":
        print("ModuleNotFoundError: No module named 'torch'", file=sys.stderr)
        sys.exit(1)
    if how == "hangs":
        time.sleep(600)
    if how.startswith("killed "):  # as often as there are lines missing in a file
        file = Path(how.removeprefix("killed "))
        starts = file.read_text().splitlines()
        if starts:
            file.write_text("\n".join(starts[1:]))
            os.kill(os.getpid(), signal.SIGKILL)
    if how == "late":
        time.sleep(5)


def _ceiling(line: Line, command: dict[str, Any], how: str) -> None:
    subject = {"device": command["device"]["type"], "precision": command["precision"]}
    if how == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "fails":
        line.say("ceiling_failed", **subject, detail="too hot")
    else:
        line.say("ceiling_measured", **subject, matmul_flops_per_s=1e12, matmul_size=1024)


def _probe(line: Line, default: int, chosen: int) -> None:
    if not chosen:
        os.kill(os.getpid(), signal.SIGKILL)
    line.say("threads_probed", default=default, threads=chosen, mean_s=[[default, 0.08], [chosen, 0.002]])


def _finish(outcome: str, detail: str | None = None) -> Callable[[Line, Cell], None]:
    def act(line: Line, cell: Cell) -> None:
        line.step(cell)
        line.finish(cell, outcome, detail)

    return act


def _die_by(number: signal.Signals) -> Callable[[Line, Cell], None]:
    def act(line: Line, cell: Cell) -> None:
        line.step(cell)
        os.kill(os.getpid(), number)

    return act


def _leave(line: Line, cell: Cell) -> NoReturn:
    print("first line\nRuntimeError: the device fell off the bus", file=sys.stderr)
    sys.exit(3)


def _abort(said: str) -> Callable[[Line, Cell], None]:
    """Says something and aborts, as PyTorch's C++ does, with the report of Python's faulthandler below it."""

    def act(line: Line, cell: Cell) -> None:
        line.step(cell)
        print(said, file=sys.stderr, flush=True)
        faulthandler.enable()
        os.abort()

    return act


WATCHDOG = (
    "[rank1]:[E1120 10:00:00.000000000 ProcessGroupNCCL.cpp:683] [Rank 1] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600011 "
    "milliseconds before timing out."
)


CPP_ERROR = """terminate called after throwing an instance of 'c10::AcceleratorError'
  what():  CUDA error: an illegal memory access was encountered
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.

Exception raised from c10_cuda_check_implementation at /pytorch/c10/cuda/CUDAException.cpp:44 (most recent call first):
frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x80 (0x7f2d in libc10.so)
frame #1: clone + 0x44 (0x7f2e in libc.so.6)
"""


def _hang(line: Line, cell: Cell) -> None:
    line.step(cell)
    time.sleep(600)


def _hang_stubbornly(line: Line, cell: Cell) -> None:
    """Hangs, ignores SIGTERM, and has started a child that does the same."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(os.environ["SYSBENCH_TEST_CHILD"]).write_text(str(child.pid))
    _hang(line, cell)


def _go_on(line: Line, cell: Cell) -> None:
    """Measures until somebody stops it."""
    for index in range(10_000):
        line.step(cell, index)
        time.sleep(0.02)


def _babble(line: Line, cell: Cell) -> None:
    line.connection.send_bytes(b"PK\x03\x04 not an event")
    time.sleep(600)


def _slowly(line: Line, cell: Cell) -> None:
    """Takes longer than a short timeout, but keeps talking."""
    for index in range(50):
        time.sleep(0.1)
        line.step(cell, index)
    line.finish(cell, "ok")


def _rush(line: Line, cell: Cell) -> None:
    """Steps without a pause."""
    for index in range(2000):
        line.step(cell, index)
    line.finish(cell, "ok")


_ACTS: dict[str, Callable[[Line, Cell], None]] = {
    "ok": _finish("ok"),
    "oom": _finish("oom", "CUDA out of memory. Tried to allocate 20.00 GiB."),
    "crashed": _finish("crashed", "RuntimeError: device-side assert triggered"),
    "invalid": _finish("invalid", "there is no such kernel"),
    "killed": _die_by(signal.SIGKILL),
    "waits for a rank": _abort(WATCHDOG),
    "aborts in C++": _abort("terminate called after throwing an instance of 'c10::Error'"),
    "aborts with a reason": _abort(CPP_ERROR),
    "aborted": _die_by(signal.SIGABRT),
    "leaves": _leave,
    "hangs": _hang,
    "hangs stubbornly": _hang_stubbornly,
    "goes on": _go_on,
    "babbles": _babble,
    "slow": _slowly,
    "rushes": _rush,
    "timeout": _finish("timeout", "RuntimeError: Timed out waiting 700ms for recv operation to complete"),
    "bereft": _finish("crashed", "RuntimeError: Connection closed by peer [127.0.0.1]:1024"),
}

if __name__ == "__main__":
    main()
