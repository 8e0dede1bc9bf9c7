"""Settings for the whole suite."""

import atexit
import gc
import os
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial, wraps
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings

from tests.fake_gpu.fixture import fake_gpu  # noqa: F401

# One thread for every worker that the tests start: on a shared machine, threads that wait for each other make a step
# of a millisecond last for seconds, and no test asserts how fast a step is.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# No test asks a server for a model, except those that bring one.
os.environ["HF_HUB_OFFLINE"] = "1"

# What whoever runs the tests has calibrated is none of their business, nor is what the tests calibrate theirs.
os.environ["XDG_CONFIG_HOME"] = tempfile.mkdtemp(prefix="sysbench-tests-")

# What a shell starts in the background ignores Ctrl-C, and what `nohup` starts ignores SIGHUP: a run that is told to
# stop would go on. They are caught instead, which processes that the tests start do not inherit; a terminal that is
# closed still does not end what `nohup` has started.
for number, handler in {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGHUP: lambda *_: None,
}.items():
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

ALL_TESTS = pytest.Config.ArgsSource.TESTPATHS

# How long an example takes to make or to try says how busy the machine is.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


def pytest_configure(config: pytest.Config) -> None:
    """Where bytecode is not to lie beside the sources, keep it with pytest's cache.

    The tests start hundreds of processes, and without any each would compile torch, pydantic and rich for itself:
    that takes longer than everything that they do.
    """
    cache: pytest.Cache | None = getattr(config, "cache", None)
    if cache is not None and os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
        os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = str(cache.mkdir("bytecode"))
        sys.dont_write_bytecode = False


def pytest_unconfigure() -> None:
    """Leave no directory behind."""
    shutil.rmtree(os.environ["XDG_CONFIG_HOME"], ignore_errors=True)


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Import test modules from another one on in each process of xdist: a module is rewritten once, not in each."""
    number = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    tests = Path(__file__).parent
    if collector.path == tests and number and collector.config.args_source is ALL_TESTS:
        modules = sorted(tests.rglob("test_*.py"))
        first = len(modules) * int(number) // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
        for path in [*modules[first:], *modules[:first]]:
            with suppress(Exception, pytest.skip.Exception):  # what cannot be imported is told as it is collected
                import_module(".".join(path.relative_to(tests.parent).with_suffix("").parts))


@pytest.fixture(autouse=True)
def _only_what_a_module_makes_is_collected() -> None:
    """Keep what is there before out of garbage collection: 6,000 tests and torch are traversed in half a second.

    Every measured cell begins with a collection.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _workers_are_forked() -> Iterator[None]:
    """Fork what this process would start as a worker, so that not each of hundreds imports torch; not beside a GPU.

    What a worker imports may have asked CUDA, and whoever has done that cannot be forked.
    """
    if sys.platform != "linux" or any(map(os.path.exists, ("/dev/nvidiactl", "/dev/dxg"))):
        yield
        return
    from tests.worker import forked  # whose environment is that which this process was configured with

    with mock.patch.object(forked.WorkerProcess, "_launch", forked.launch):
        yield


@pytest.fixture
def graphs_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have models compiled to graphs, for real, but not to C++: generating that takes most of a minute."""
    import torch
    from functorch.compile import make_boxed_func
    from torch._inductor.compile_fx import compile_fx  # takes seconds

    without_code = partial(compile_fx, inner_compile=lambda graph, *_, **__: make_boxed_func(graph))
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=without_code))


@pytest.fixture
def einops_in_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the compiler put calls of einops into graphs as they are: tracing them takes half the time of a model."""
    import einops
    from torch._dynamo import allow_in_graph  # takes seconds

    from sysbench.lab import attention, transformer

    def as_it_is(function: Callable[..., Any]) -> Any:
        @wraps(function)
        def called(*arguments: Any, **options: Any) -> Any:
            return function(*arguments, **options)

        return allow_in_graph(called)

    for module, name in ((attention, "einsum"), (transformer, "einsum"), (transformer, "rearrange")):
        monkeypatch.setattr(module, name, as_it_is(getattr(einops, name)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """For `-n auto`: one more than there are processors, as a quarter of the time is waiting for what was started."""
    return (os.cpu_count() or 1) + 1


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Sum up in one line what was skipped and why."""
    reasons = Counter(str(report.longrepr[2]) for report in terminalreporter.getreports("skipped"))
    if reasons:
        said = "; ".join(f"{count} × {reason.removeprefix('Skipped: ')}" for reason, count in reasons.most_common())
        terminalreporter.write_line(f"skipped: {said}")


@atexit.register
def keep_leaks_of_triton_to_itself() -> None:
    """Close stderr when all is said: once the interpreter is gone, Triton's bindings list dozens of objects there."""
    if any(name.startswith("triton.") for name in sys.modules):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
