"""Show what sysbench.measure or sysbench.record measured in a program of your own."""

from sysbench.command import Command, InReport

COMMAND = Command(
    package=__name__,
    help=__doc__,
    measure=None,
    report=InReport(6, "Your own loop", ("phases", "memory")),
    lines="sysbench.render.dashboard.cell_lines:TitledLines",
    terms="sysbench.commands.report.method:loop_terms",
    usual_tables="tables:usual",
    compared=("step",),
)
