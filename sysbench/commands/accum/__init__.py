"""See what rounding does: to sums, under autocast, in layer norm, to gradients and in matrix products."""

from sysbench.command import Command, ReportLayout

COMMAND = Command(
    package=__name__,
    help=__doc__,
    report=ReportLayout(4, "Rounding"),
    files="command:draw",
    refuse_files="command:refuse_unwritable",
    plan="tables:plan",
    terms="terms:terms",
    measures="compared:measures",
    default_tables="tables:usual",
    runs_anywhere=True,
)
