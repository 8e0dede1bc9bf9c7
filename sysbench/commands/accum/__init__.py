"""`sysbench accum`."""

from sysbench.command import Command, InReport

COMMAND = Command(
    name="accum",
    package=__name__,
    help="See what rounding does: to sums, under autocast, in layer norm, to gradients and in matrix products.",
    spec="spec:AccumSpec",
    cell="spec:AccumCell",
    options="spec:AccumOptions",
    plan="tables:plan",
    record="record:AccumRecord",
    lines="live:AccumLines",
    terms="sysbench.commands.report.method:of_accum",
    report=InReport(4, "Rounding"),
    usual_tables="tables:usual",
)
