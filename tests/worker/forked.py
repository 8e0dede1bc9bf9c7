"""Workers that are forked, in a hundredth of the time that a new process takes to import torch and its compiler.

`python -m tests.worker.forked` imports what a worker imports and then forks one for each request on its stdin. Such a
worker runs the same `main`, in the same directory, environment, session and streams as a new process would, and is a
child of the process that asked: its memory is read, its death is noticed, and it is killed, as that of any worker.
A slow package that one worker imports is imported before the next one is forked.
Whatever is about the start of a worker starts a real one: `sysbench`, or an environment of its own.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.abc import MetaPathFinder
from pathlib import Path

import psutil

from sysbench import bootstrap
from sysbench.engine.process import Launcher, WorkerProcess

_REQUEST_BYTES = 2**18
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h

_OURS = Launcher().environment()
_PRELOADS = ("LD_PRELOAD", "LD_LIBRARY_PATH")
"""With each other value of these, another process forks: workers see a GPU that is not there (tests/fake_gpu)."""
_READ_WHEN_USED = (
    *("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "TORCH_CUBLAS_WORKSPACE_CACHE"),
    "TORCHINDUCTOR_CACHE_DIR",
)
"""Settings of CUDA, which are read by the first that uses a GPU: that is the worker. The last is a setting of the
compiler, which sets it itself in each process that has compiled something."""
_SLOW = ("torch.distributed.fsdp", "torch.distributed.tensor", "torch._inductor.compile_fx")
"""Modules that take half a second or more to import, and that only some workers need."""
_SLOW_AND_ASKING_FOR_A_GPU = ("transformers.modeling_utils", "peft", "torchao.quantization", "bitsandbytes")
"""Whoever has asked CUDA cannot be forked, so these are imported ahead only where there is none."""
_START = subprocess.Popen.__init__
_launch = WorkerProcess._launch


class Forked:
    """What a `Popen` knows of a process, for a child that somebody else has forked."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode


def launch(worker: WorkerProcess, environment: dict[str, str], address: Path) -> Forked | subprocess.Popen[bytes]:
    """In place of `WorkerProcess._launch`: fork what would be `python -m sysbench.worker` in this environment."""
    plain = worker.command == Launcher().command()
    read = _read_by_imports(environment)
    replaced = subprocess.Popen.__init__ is not _START  # by a test that lets nobody start a process
    if not plain or not is_as_here(environment) or replaced:
        return _launch(worker, environment, address)
    meeting_point = {bootstrap.ADDRESS_VARIABLE: str(address), bootstrap.KEY_VARIABLE: worker._key.hex()}
    request = json.dumps({"directory": str(Path.cwd()), "environment": {**environment, **meeting_point}}).encode()
    server = _server(*(read.get(name, "") for name in _PRELOADS))
    with _Reaper():
        socket.send_fds(server, [request], [worker._output.fileno()])
        return Forked(int(server.recv(100)))


def is_as_here(environment: dict[str, str]) -> bool:
    """Whether a process with this environment would import what the one that forks has imported."""
    read = _read_by_imports(environment)
    return read == {**_read_by_imports(_OURS), **{name: read[name] for name in _PRELOADS if name in read}}


def _read_by_imports(environment: dict[str, str]) -> dict[str, str]:
    """What Python, torch and the libraries below read when they are imported, which a fork does not do again."""
    families = ("PYTHON", "LD_", "OMP_", "MKL_", "TORCH", "PYTORCH", "CUDA")
    return {
        name: value for name, value in environment.items() if name.startswith(families) and name not in _READ_WHEN_USED
    }


def children() -> list[psutil.Process]:
    """The processes below this one, without the one that forks, and the one that demangles names until the end."""
    return [
        each
        for each in psutil.Process().children(recursive=True)
        if each.pid not in _servers and "sysbench.trace.kernels.demangling" not in _words(each)
    ]


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:  # it has just ended
        return []


_servers: list[int] = []


@cache
def _server(*preloads: str) -> socket.socket:
    """The process that forks for this one: started once, ends when this one does."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {**_OURS, **{name: value for name, value in zip(_PRELOADS, preloads, strict=True) if value}}
    with its:
        process = subprocess.Popen([sys.executable, "-m", __name__], env=environment, stdin=its, start_new_session=True)
    _servers.append(process.pid)
    atexit.register(lambda: (ours.close(), process.wait(10)))
    return ours


class _Reaper:
    """While it is open, a descendant of this process whose parent ends becomes its child."""

    def __enter__(self) -> None:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)

    def __exit__(self, *_: object) -> None:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 0)


class _Teller(MetaPathFinder):
    """Writes down the slow modules that this process imports."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.wanted = _SLOW if "LD_PRELOAD" in os.environ else (*_SLOW, *_SLOW_AND_ASKING_FOR_A_GPU)

    def find_spec(self, name: str, *_: object) -> None:
        if name in self.wanted:
            with self.file.open("a") as told:
                told.write(f"{name}\n")


def _serve() -> None:
    """Fork for each request; returns in a worker, as its `main` is about to begin, and ends the program at the end."""
    doorway = socket.socket(fileno=os.dup(0))
    directory = tempfile.TemporaryDirectory()
    slow = Path(directory.name) / "imported"
    slow.touch()
    while True:
        request, (*files,), *_ = socket.recv_fds(doorway, _REQUEST_BYTES, 1)
        if not request:
            directory.cleanup()
            sys.exit()
        for name in slow.read_text().splitlines():
            if name not in sys.modules:
                with suppress(Exception):  # the worker that needs it says what is wrong
                    import_module(name)
                gc.freeze()
        reading, writing = os.pipe()
        parent = os.fork()
        if not parent:
            between = os.getpid()
            if worker := os.fork():
                os.write(writing, b"%d" % worker)
                os._exit(0)  # which makes the one that asked the parent of the worker
            doorway.close()
            directory._finalizer.detach()  # type: ignore[attr-defined]
            sys.meta_path.insert(0, _Teller(slow))
            _become(between, **json.loads(request), output=files[0])
            return
        os.waitpid(parent, 0)
        doorway.send(os.read(reading, 100))
        for descriptor in (reading, writing, *files):
            os.close(descriptor)


def _become(parent: int, directory: str, environment: dict[str, str], output: int) -> None:
    """Make this process like one that was started so."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    for source, stream in ((null, 0), (output, 1), (output, 2)):
        os.dup2(source, stream)
    os.closerange(3, 256)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    while os.getppid() == parent:
        time.sleep(0.0005)


if __name__ == "__main__":
    import torch._dynamo  # noqa: F401  which the first optimizer imports

    import sysbench.worker.service  # noqa: F401
    from sysbench.command import runnable
    from sysbench.log.kinds import command_of
    from sysbench.worker.__main__ import main

    for kind in runnable():
        assert command_of(kind).measure()
    gc.collect()
    gc.freeze()
    _serve()
    main()
