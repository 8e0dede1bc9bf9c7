"""sysbench measures, simulates and explains the time and memory of Transformer training steps.

The functions (`load`, `run`, `measure`, `record`, …) and the spec classes (`TimeSpec`, …) are imported on first use.
"""

TYPE_CHECKING = False  # `typing` takes longer to import than everything else here

if TYPE_CHECKING:
    from sysbench.api import (
        Profile,
        Recording,
        Run,
        Snapshot,
        load,
        measure,
        phase,
        read_snapshot,
        read_trace,
        record,
        run,
        step,
    )
    from sysbench.commands.accum.spec import AccumSpec
    from sysbench.commands.attention.spec import AttentionSpec
    from sysbench.commands.memory.spec import MemorySpec
    from sysbench.commands.profile.spec import ProfileSpec
    from sysbench.commands.time.spec import TimeSpec
    from sysbench.errors import SysbenchError
    from sysbench.guards import MemoryAssertionError, assert_fits, assert_peak

    __version__: str

__all__ = [
    "AccumSpec",
    "AttentionSpec",
    "MemoryAssertionError",
    "MemorySpec",
    "Profile",
    "ProfileSpec",
    "Recording",
    "Run",
    "Snapshot",
    "SysbenchError",
    "TimeSpec",
    "__version__",
    "assert_fits",
    "assert_peak",
    "load",
    "measure",
    "phase",
    "read_snapshot",
    "read_trace",
    "record",
    "run",
    "step",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = _found(name)
    globals()[name] = found  # marks in a loop are looked up in every step
    return found


def _found(name: str) -> object:
    from sysbench import marks

    if name in ("phase", "step"):  # a script with marks that is not recorded imports nothing else
        return getattr(marks, name)
    if name == "__version__":
        from sysbench.package import VERSION

        return VERSION
    if name in ("MemoryAssertionError", "assert_fits", "assert_peak"):
        from sysbench import guards

        return getattr(guards, name)
    from sysbench import api
    from sysbench.command import command_of, kinds

    specs = {command_of(kind).models().spec.__name__: kind for kind in kinds()} if name.endswith("Spec") else {}
    return command_of(specs[name]).models().spec if specs else getattr(api, name)


def __dir__() -> list[str]:
    return __all__
