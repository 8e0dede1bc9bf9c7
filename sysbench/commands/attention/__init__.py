"""`sysbench attention`."""

from sysbench.command import Command

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
    usual_tables="tables:usual",
)
