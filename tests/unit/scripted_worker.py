"""A worker without torch that does what a script says: a real process, so that its deaths are real.

The script is JSON in the environment: `start`, `ceiling`, and by context length what becomes of a cell.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from sysbench import protocol
from sysbench.events import (
    CeilingFailed,
    CeilingMeasured,
    CellFinished,
    DeviceInfo,
    Event,
    PhaseSample,
    StepMeasured,
    TorchInfo,
    WorkerReady,
)
from sysbench.outcomes import Outcome
from sysbench.worker.channel import Channel

SCRIPT_VARIABLE = "SYSBENCH_TEST_SCRIPT"


def main() -> None:
    script = json.loads(os.environ[SCRIPT_VARIABLE])
    _start(script.get("start", "ready"))
    channel = Channel.connect()
    channel.send(
        WorkerReady(
            at_s=time.time(),
            pid=os.getpid(),
            torch=TorchInfo(
                torch=script.get("torch", "2.13.0"),
                cuda=None,
                cudnn=None,
                triton=None,
                threads=1,
                allocator=None,
                import_s=0.0,
            ),
            devices=[DeviceInfo.model_validate(device) for device in script["devices"]],
        )
    )
    if script.get("idle") == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    for request in channel.requests():
        if isinstance(request, protocol.MeasureCeiling):
            _ceiling(channel, request, script.get("ceiling", "ok"))
        else:
            act = script.get("cells", {}).get(str(request.cell.ctx), "ok")
            _ACTS[act](channel, request)
    if script.get("end") == "lingers":
        time.sleep(60)


def _start(how: str) -> None:
    if how == "dies":
        print("ModuleNotFoundError: No module named 'torch'", file=sys.stderr)
        sys.exit(1)
    if how == "hangs":
        time.sleep(60)


def _ceiling(channel: Channel, request: protocol.MeasureCeiling, how: str) -> None:
    device, precision = request.device.torch_name, request.precision
    if how == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "fails":
        channel.send(CeilingFailed(at_s=time.time(), device=device, precision=precision, detail="too hot"))
        return
    channel.send(
        CeilingMeasured(at_s=time.time(), device=device, precision=precision, matmul_flops_per_s=1e12, matmul_size=1024)
    )


def _step(channel: Channel, request: protocol.MeasureTime, index: int = 0) -> None:
    sample = PhaseSample(wall_s=0.001)
    channel.send(
        StepMeasured(
            at_s=time.time(), cell=request.cell.key, index=index, warmup=False, phases={"forward": sample}, step=sample
        )
    )


def _finish(outcome: Outcome, detail: str | None = None) -> Callable[[Channel, protocol.MeasureTime], None]:
    def act(channel: Channel, request: protocol.MeasureTime) -> None:
        _step(channel, request)
        finished: Event = CellFinished(at_s=time.time(), cell=request.cell.key, outcome=outcome, detail=detail)
        channel.send(finished)

    return act


def _die_by(number: signal.Signals) -> Callable[[Channel, protocol.MeasureTime], None]:
    def act(channel: Channel, request: protocol.MeasureTime) -> None:
        _step(channel, request)
        os.kill(os.getpid(), number)

    return act


def _leave(channel: Channel, request: protocol.MeasureTime) -> NoReturn:
    print("first line\nRuntimeError: the device fell off the bus", file=sys.stderr)
    sys.exit(3)


def _hang(channel: Channel, request: protocol.MeasureTime) -> None:
    _step(channel, request)
    time.sleep(60)


def _hang_stubbornly(channel: Channel, request: protocol.MeasureTime) -> None:
    """Hangs, ignores SIGTERM, and has started a child that does the same."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    Path(os.environ["SYSBENCH_TEST_CHILD"]).write_text(str(child.pid))
    _hang(channel, request)


def _go_on(channel: Channel, request: protocol.MeasureTime) -> None:
    """Measures until somebody stops it."""
    for index in range(10_000):
        _step(channel, request, index)
        time.sleep(0.02)


def _babble(channel: Channel, request: protocol.MeasureTime) -> None:
    channel._connection.send_bytes(b"PK\x03\x04 not an event")
    time.sleep(60)


def _slowly(channel: Channel, request: protocol.MeasureTime) -> None:
    """Takes longer than a short timeout, but keeps talking."""
    for index in range(8):
        time.sleep(0.1)
        _step(channel, request, index)
    _finish("ok")(channel, request)


_ACTS: dict[str, Callable[[Channel, protocol.MeasureTime], None]] = {
    "ok": _finish("ok"),
    "oom": _finish("oom", "CUDA out of memory. Tried to allocate 20.00 GiB."),
    "crashed": _finish("crashed", "RuntimeError: device-side assert triggered"),
    "invalid": _finish("invalid", "there is no such kernel"),
    "killed": _die_by(signal.SIGKILL),
    "aborted": _die_by(signal.SIGABRT),
    "leaves": _leave,
    "hangs": _hang,
    "hangs stubbornly": _hang_stubbornly,
    "goes on": _go_on,
    "babbles": _babble,
    "slow": _slowly,
}

if __name__ == "__main__":
    main()
