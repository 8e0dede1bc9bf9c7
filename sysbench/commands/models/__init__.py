"""List the published models that --model takes by name, with their dimensions, and where these are from."""

from sysbench.command import Command

COMMAND = Command(package=__name__, help=__doc__, also_called="catalogue architectures", spec=None)
