"""Run an experiment: several sysbench commands listed in one file, with results in one directory."""

from sysbench.command import Command

COMMAND = Command(package=__name__, help=__doc__, also_called="experiment experiments", spec=None)
