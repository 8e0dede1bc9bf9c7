"""What commands do on a machine without a GPU: they answer for one that training runs on most often."""

from __future__ import annotations

from sysbench.commands.showing import say
from sysbench.spec import hardware
from sysbench.spec.run import RunOptions

DEFAULT_GPU = "h100"
"""The GPU that is simulated where there is none and none was named."""


def is_without_gpu() -> bool:
    """Whether this machine has no GPU that torch can use; asks a worker, which the run then uses."""
    from sysbench.engine.supervisor import list_devices

    return list_devices()[0].type == "cpu"


def say_simulating(options: RunOptions) -> None:
    """Say that DEFAULT_GPU is simulated because there is no GPU here."""
    title = hardware.by_name(DEFAULT_GPU).title
    say(f"no GPU here: simulating {title} (--simulate names another, --device cpu measures this host)", options)
