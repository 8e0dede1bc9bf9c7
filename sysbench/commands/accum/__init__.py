"""`sysbench accum`."""

from sysbench.command import Command, InReport

COMMAND = Command(
    name="accum",
    package=__name__,
    help="See what rounding does: to sums, under autocast, in layer norm, to gradients and in matrix products.",
    files="command:draw",
    refuse_files="command:refuse_unwritable",
    plan="tables:plan",
    lines="sysbench.render.dashboard.cell_lines:TitledLines",
    terms="sysbench.commands.report.method:of_accum",
    report=InReport(4, "Rounding"),
    usual_tables="tables:usual",
)
