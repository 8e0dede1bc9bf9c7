"""Pools that run shards of a run's cells: processes on this machine, Ray, or SLURM.

A shard is a complete run with its own worker, sensors and timeouts; the original run reads its log.
"""

from __future__ import annotations

import importlib
import os
import socket
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict

from sysbench import extras
from sysbench.bootstrap import command, environment
from sysbench.engine.interrupts import signal_name
from sysbench.engine.provisions import Surroundings
from sysbench.errors import LogError, UsageError
from sysbench.log import journal
from sysbench.log.events import Event
from sysbench.log.kinds import command_of
from sysbench.log.outcomes import Outcome
from sysbench.log.storage import ScratchDirectory
from sysbench.package import source_digest
from sysbench.spec.cell import cell_of, spec_of
from sysbench.spec.run import RunOptions

PATIENCE_S = 20.0
"""Time that a process is given to complete its log after being asked to stop."""

RAY_PORT = 10001

ANSWER_S = 10.0

LONGEST_CHARACTERS = 300

RunCells = Callable[..., Any]
"""`sysbench.engine.session.run`, handed over because a session in turn hands its cells to shards."""


class Shard(BaseModel):
    """Cells that one process runs one after another."""

    model_config = ConfigDict(frozen=True)

    spec: dict[str, Any]
    cells: tuple[dict[str, Any], ...]
    options: dict[str, Any]
    digest: str
    """Hash of the source code that must run the shard."""
    device: str
    gpus: int
    """Number of GPUs that a cell needs; with `auto`, Ray assigns none if no machine has enough."""
    simulated: bool


def run_shard(shard: Shard, directory: Path, run: RunCells) -> Path:
    """Run a shard with `run`, and return the path of its log in `directory`."""
    if source_digest() != shard.digest:
        raise UsageError(
            f"{socket.gethostname()} has a different sysbench from this machine: install the same one there"
        )
    command_of(shard.spec["kind"]).records()  # registers the command's own events
    options = RunOptions(**shard.options, out=directory)
    cells = [cell_of(axes) for axes in shard.cells]
    with run(spec_of(shard.spec), options, cells=cells, surroundings=Surroundings(log_name="shard")) as running:
        for _ in running:
            pass
    log_path: Path = running.log_path
    return log_path


def run_shard_remotely(shard: Shard, run: RunCells) -> bytes:
    """Run a shard with `run` in a temporary directory, and return the content of its log."""

    with ScratchDirectory() as directory:
        return run_shard(shard, Path(directory), run).read_bytes()


Failure = tuple[Outcome, str]


class Processes:
    """A pool of processes on this machine."""

    def __init__(self, count: int) -> None:
        self.slots = count
        self._directory = ScratchDirectory()
        self._jobs: list[_Process] = []

    def start(self, shards: Sequence[Shard]) -> Sequence[Job]:
        """Submit shards; their processes start when `Job.done` finds a free slot."""
        for number, shard in enumerate(shards):
            place = Path(self._directory.name) / str(number)
            place.mkdir()
            (place / "shard").write_text(shard.model_dump_json())
            self._jobs.append(_Process(self, place))
        return self._jobs

    def has_room(self) -> bool:
        """Whether a slot is free for another process."""
        return sum(job.running() for job in self._jobs) < self.slots

    def close(self) -> None:
        """Remove the files that the processes left behind."""
        self._directory.cleanup()


@dataclass
class _Process:
    pool: Processes
    place: Path
    process: subprocess.Popen[bytes] | None = None

    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def done(self) -> bool:
        if self.process is None and self.pool.has_room():
            words = [
                *command("sysbench.engine.parallel"),
                str(self.place / "shard"),
                str(self.place),
                str(os.getpid()),
            ]
            with (self.place / "said").open("wb") as said:
                # In a session of its own, the process does not receive Ctrl-C: the run decides how the process ends.
                self.process = subprocess.Popen(
                    words, env=environment(), stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True
                )
        return self.process is not None and self.process.poll() is not None

    def events(self) -> list[Event]:
        if self.process is not None:
            try:
                self.process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
        return _left_in(self.place)

    def failure(self) -> Failure:
        last = _last_line((self.place / "said").read_text(errors="replace"))
        code = self.process.returncode if self.process else 0
        how = f"was killed by {signal_name(-code)}" if code < 0 else f"exited with code {code}"
        return "crashed", last or f"the process that ran it {how}"

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()


class OnRay:
    """A pool on a Ray cluster: an existing one, or one started on this machine for the run."""

    def __init__(self, address: str | None, arguments: Mapping[str, Any], run: RunCells) -> None:
        """Connect to the cluster at `address`, or start one; raises UsageError if that fails."""
        self._ray = _optional("ray")
        try:
            if address is not None:  # Ray itself tries for half a minute
                there = urlsplit(address)
                socket.create_connection((there.hostname, there.port or RAY_PORT), timeout=ANSWER_S).close()
            # A cluster that is started for the run needs no dashboard, which would take seconds of CPU time.
            dashboard = False if address is None else None
            self._ray.init(address, log_to_driver=False, logging_level="ERROR", include_dashboard=dashboard)
        except Exception as error:
            raise UsageError(f"--on {address or 'ray'}: no Ray cluster answers: {_words(error)}") from error
        self.slots = max(1, int(self._ray.cluster_resources().get("CPU", 1)))
        self._arguments = arguments
        self._run = run
        resources = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        self._most_cpus = max(resource.get("CPU", 1) for resource in resources)
        self._most_gpus = max(resource.get("GPU", 0) for resource in resources)

    def start(self, shards: Sequence[Shard]) -> Sequence[Job]:
        """Submit shards; a shard that is measured on a CPU requests all CPUs of the largest machine."""
        started = []
        for shard in shards:
            gpus = shard.gpus if shard.gpus <= self._most_gpus or shard.device != "auto" else 0
            if gpus > self._most_gpus:
                raise UsageError(
                    f"--device {shard.device}: a cell needs {gpus} GPU{'s' if gpus > 1 else ''}, but no machine of "
                    f"the Ray cluster has more than {self._most_gpus:g}. --device cpu needs none"
                )
            cpus = 1 if shard.simulated or gpus else self._most_cpus
            wanted = {"num_cpus": cpus, "num_gpus": gpus, "max_retries": 1, **self._arguments}
            try:
                task = self._ray.remote(**wanted)(run_shard_remotely)
            except (TypeError, ValueError) as error:
                raise UsageError(f"--on-arg: rejected by Ray: {_words(error)}") from error
            started.append(_RayTask(self._ray, task.remote(shard, self._run)))
        return started

    def close(self) -> None:
        """Disconnect from the cluster, which ends the tasks of this run."""
        self._ray.shutdown()


@dataclass
class _RayTask:
    ray: Any
    task: Any
    error: Exception | None = None

    def done(self) -> bool:
        return bool(self.ray.wait([self.task], timeout=0)[0])

    def events(self) -> list[Event]:
        try:
            content: bytes = self.ray.get(self.task, timeout=PATIENCE_S)
        except Exception as error:  # noqa: BLE001  Whatever the task raised, or what happened to it.
            self.error = error
            return []
        with ScratchDirectory() as directory:
            (Path(directory) / "shard.jsonl").write_bytes(content)
            return _left_in(Path(directory))

    def failure(self) -> Failure:
        return "crashed", _words(getattr(self.error, "cause", None) or self.error)

    def stop(self) -> None:
        self.ray.cancel(self.task)


class OnSlurm:
    """A pool of SLURM jobs, submitted through submitit as one job array per run."""

    slots = 32

    def __init__(self, asked: str, folder: Path, arguments: Mapping[str, Any], run: RunCells) -> None:
        """Prepare submission to SLURM, or to local processes for `slurm:local`; raises UsageError."""
        submitit = _optional("submitit")
        self._asked = asked
        self._folder = folder.absolute()
        self._run = run
        try:
            self._executor = submitit.AutoExecutor(self._folder, cluster=asked.removeprefix("slurm:"))
            self._executor.update_parameters(**{"name": "sysbench", "timeout_min": 60, **arguments})
        except Exception as error:
            raise UsageError(f"--on {asked}: {_words(error)}") from error

    def start(self, shards: Sequence[Shard]) -> Sequence[Job]:
        """Submit shards as a job array; raises UsageError if SLURM rejects the jobs."""
        self._executor.update_parameters(gpus_per_node=max(shard.gpus for shard in shards))
        self._folder.mkdir(parents=True, exist_ok=True)
        places = [Path(tempfile.mkdtemp(prefix="shard-", dir=self._folder)) for _ in shards]
        try:
            jobs = self._executor.map_array(partial(run_shard, run=self._run), shards, places)
        except Exception as error:
            raise UsageError(f"--on {self._asked}: {_words(error)}") from error
        return [_SlurmJob(job, place) for job, place in zip(jobs, places, strict=True)]

    def close(self) -> None:
        """Do nothing: the folder holds the jobs' logs and is kept."""


@dataclass
class _SlurmJob:
    job: Any
    place: Path

    def done(self) -> bool:
        return bool(self.job.done())

    def events(self) -> list[Event]:
        return _left_in(self.place)

    def failure(self) -> Failure:
        state, said = str(self.job.state), self.job.stderr() or ""
        if "TIMEOUT" in state or "timed-out" in said:  # by SLURM itself, or by submitit shortly before
            return (
                "timeout",
                f"SLURM ended job {self.job.job_id} at its time limit: --on-arg timeout_min=120 sets a longer one",
            )
        why = _last_line(said) or f"it ended as {state}"
        return "crashed", f"job {self.job.job_id}: {why} ({self.job.paths.stderr})"

    def stop(self) -> None:
        self.job.cancel(check=False)


def _optional(name: str) -> Any:
    extra = {"submitit": "slurm"}.get(name, name)
    if complaint := extras.missing(name, extra, f"--on {extra}"):
        raise UsageError(complaint)
    return importlib.import_module(name)


def _words(error: object) -> str:
    return " ".join(str(error).split())[:LONGEST_CHARACTERS]


def _last_line(said: str) -> str:
    return _words(next((line for line in reversed(said.splitlines()) if line.strip()), ""))


def _left_in(place: Path) -> list[Event]:
    try:
        return list(journal.read(place / "shard.jsonl"))
    except LogError:
        return []


Job: TypeAlias = _Process | _RayTask | _SlurmJob
"""A submitted shard: `done` says whether it has ended, `events` returns what it has logged (after `stop`, once it has
ended), and `failure` the outcome of its unfinished cells, and the reason."""

Pool: TypeAlias = Processes | OnRay | OnSlurm
"""Runs shards: `start` submits them, and each starts as soon as one of about `slots` slots is free."""


def pool_of(options: RunOptions, run: RunCells) -> Pool:
    """Return the pool for `--on` or `--parallel`, whose shards are run with `run`."""
    arguments = dict(options.on_arg)
    match options.on:
        case None:
            return Processes(options.parallel or 1)
        case "slurm" | "slurm:local":
            return OnSlurm(options.on, options.out / "slurm", arguments, run)
        case "ray":
            return OnRay(None, arguments, run)
        case address:
            return OnRay(address, arguments, run)
