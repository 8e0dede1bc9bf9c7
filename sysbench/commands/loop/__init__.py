"""Show what sysbench.measure or sysbench.record measured in a program of your own."""

from sysbench.command import Command, ReportLayout

COMMAND = Command(
    package=__name__,
    help=__doc__,
    also_called="watch record",
    figures=None,
    measure=None,
    report=ReportLayout(6, "Your own loop", ("phases", "memory")),
    findings="tables:findings",
    measures="tables:measures",
    default_tables="tables:usual",
    verdicts=("step",),
)
