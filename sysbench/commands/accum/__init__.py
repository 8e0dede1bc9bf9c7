"""See what rounding does: to sums, under autocast, in layer norm, to gradients and in matrix products."""

from sysbench.command import Command, ReportLayout

COMMAND = Command(
    package=__name__,
    help=__doc__,
    also_called="accumulate rounding numerics precision",
    options="sysbench.spec.run:SavedOptions",
    figures=None,
    report=ReportLayout(4, "Rounding"),
    plan="tables:plan",
    measures="tables:measures",
    default_tables="tables:usual",
    runs_anywhere=True,
)
