"""The `sysbench attention` command."""

from sysbench.command import Command, InReport

COMMAND = Command(
    name="attention",
    package=__name__,
    help="Sweep attention by head dimension, sequence length and implementation; see where it breaks.",
    spec="spec:AttentionSpec",
    cell="spec:AttentionCell",
    options="spec:AttentionOptions",
    plan="tables:plan",
    record="record:AttentionRecord",
    picture="live:ATTENTION",
    lines="live:AttentionLines",
    terms="sysbench.commands.report.method:of_attention",
    report=InReport(3, "Attention", ("sweep", "comparison", "exponents", "crossovers", "frontier", "accounting")),
    compared=("forward", "backward"),
    in_turns=True,
    findings="findings:findings",
    figures="pictures:figures",
    usual_tables="tables:usual",
)
