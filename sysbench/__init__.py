"""sysbench measures, simulates and explains time and memory of Transformer training steps.

`load`, `run`, `read_trace` and `read_snapshot`, and the specs of runs (`TimeSpec`, `MemorySpec`, …), are imported on
first use.
"""

TYPE_CHECKING = False  # `typing` takes longer to import than everything else here

if TYPE_CHECKING:
    from sysbench.api import Profile, Run, Snapshot, load, read_snapshot, read_trace, run
    from sysbench.commands.accum.spec import AccumSpec
    from sysbench.commands.attention.spec import AttentionSpec
    from sysbench.commands.memory.spec import MemorySpec
    from sysbench.commands.profile.spec import ProfileSpec
    from sysbench.commands.time.spec import TimeSpec
    from sysbench.errors import SysbenchError

__version__ = "0.1.0"

__all__ = [
    "AccumSpec",
    "AttentionSpec",
    "MemorySpec",
    "Profile",
    "ProfileSpec",
    "Run",
    "Snapshot",
    "SysbenchError",
    "TimeSpec",
    "__version__",
    "load",
    "read_snapshot",
    "read_trace",
    "run",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sysbench import api
    from sysbench.command import kinds, measuring

    specs = {measuring(kind).spec_class.__name__: kind for kind in kinds()} if name.endswith("Spec") else {}
    return measuring(specs[name]).spec_class if specs else getattr(api, name)


def __dir__() -> list[str]:
    return __all__
