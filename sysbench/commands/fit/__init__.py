"""Find what makes a training step fit into memory, what makes it faster, and what it costs."""

from sysbench.command import Command, ReportLayout

COMMAND = Command(
    package=__name__,
    help=__doc__,
    also_called="suggest search optimize fits",
    perform="command:perform",
    suited="command:suited",
    files="command:write_files",
    gate="command:gate",
    refuse_files="command:refuse_unwritable",
    figures=None,
    report=ReportLayout(7, "What makes a step fit", ("asked", "causes", "changes", "learning")),
    screen="live:FitScreen",
    default_tables="tables:default_tables",
)
