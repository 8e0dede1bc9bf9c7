"""List the known GPUs with memory, peaks and rates, and where each number is from."""

from sysbench.command import Command

COMMAND = Command(package=__name__, help=__doc__, also_called="gpu devices hardware cards", spec=None)
