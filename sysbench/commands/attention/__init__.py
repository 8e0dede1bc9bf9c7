"""Sweep attention by head dimension, sequence length and implementation; see where it breaks."""

from sysbench.command import Command, ReportLayout

COMMAND = Command(
    package=__name__,
    help=__doc__,
    also_called="attn flash sdpa sweep",
    report=ReportLayout(3, "Attention", ("comparison", "crossovers", "frontier", "accounting")),
    perform="command:perform",
    suited="command:suited",
    files="command:draw",
    refuse_files="command:refuse_unwritable",
    plan="tables:plan",
    screen="live:AttentionScreen",
    measures="compared:measures",
    expected_duration="fold:taken_s",
    verdicts=("forward", "backward"),
    can_alternate=True,
    default_tables="tables:usual",
)
