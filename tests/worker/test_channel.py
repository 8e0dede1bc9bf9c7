"""The line between engine and worker: JSON both ways, and neither end survives the other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from multiprocessing import Pipe
from multiprocessing.connection import Listener
from pathlib import Path

import pytest

from sysbench import bootstrap
from sysbench.engine import protocol
from sysbench.log.events import DeviceInfo, RunFinished, encode
from sysbench.worker.service import Channel, EngineGoneError
from tests.engine.fakes import spec_of
from tests.processes import HANG_S

EVENT = RunFinished(at_s=1.5, status="complete")
CPU = DeviceInfo(name="Made-up CPU", type="cpu")


def test_an_event_arrives_as_one_message_of_json() -> None:
    engine, worker = Pipe()
    with engine, worker:
        Channel(worker).send(EVENT)
        assert json.loads(engine.recv_bytes()) == {"event": "run_finished", "at_s": 1.5, "status": "complete"}


def test_commands_arrive_in_order_and_whole() -> None:
    (cell,) = spec_of([16], until="1%").cells()
    commands: list[protocol.Command] = [
        protocol.MeasureCeiling(device=CPU, precision="bf16"),
        protocol.Measure(cell=cell, device=CPU),
        protocol.Exit(orderly=True),
    ]
    engine, worker = Pipe()
    with worker:
        with engine:
            for command in commands:
                engine.send_bytes(protocol.encode(command))
        assert list(Channel(worker).commands()) == commands


def test_without_an_engine_there_are_no_commands_and_no_events() -> None:
    engine, worker = Pipe()
    with worker:
        engine.close()
        channel = Channel(worker)
        assert list(channel.commands()) == []
        with pytest.raises(EngineGoneError):
            channel.send(EVENT)


def test_the_meeting_point_is_not_passed_on_to_what_the_worker_starts(tmp_path: Path) -> None:
    # In a process of its own: connecting blocks until the other end has answered the challenge.
    address, key = tmp_path / "engine", os.urandom(16)
    program = (
        "import os; from sysbench.worker.service import Channel; channel = Channel.connect()\n"
        "print([name for name in os.environ if name.startswith('SYSBENCH_')])"
    )
    environment = {**os.environ, bootstrap.ADDRESS_VARIABLE: str(address), bootstrap.KEY_VARIABLE: key.hex()}
    with Listener(str(address), authkey=key) as listener:
        worker = subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True)
        with listener.accept():
            shown, _ = worker.communicate(timeout=HANG_S)
    assert shown.strip() == "[]"


def test_the_worker_is_of_no_use_by_hand() -> None:
    shown = subprocess.run([sys.executable, "-m", "sysbench.worker"], capture_output=True, text=True, check=False)
    assert shown.stderr == "sysbench.worker is started by sysbench; run `sysbench time` instead\n"
    assert shown.returncode == 1


def test_an_event_that_is_encoded_is_one_line() -> None:
    assert b"\n" not in encode(EVENT)
