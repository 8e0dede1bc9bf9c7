"""Find what makes a training step fit into memory, what makes it faster, and what it costs."""

from sysbench.command import Command

COMMAND = Command(
    package=__name__,
    help=__doc__,
    perform="command:perform",
    suited="command:suited",
    refuse_files="command:refuse_unsupported_files",
    figures=None,
    screen="live:FitScreen",
    default_tables="tables:default_tables",
)
