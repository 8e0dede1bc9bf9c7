"""Show what this machine has, what works on it and what does not."""

from sysbench.command import Command

COMMAND = Command(package=__name__, help=__doc__, also_called="check env info setup diagnose", spec=None)
