"""Sweep attention by head dimension, sequence length and implementation; see where it breaks."""

from sysbench.command import Command, InReport

COMMAND = Command(
    package=__name__,
    help=__doc__,
    report=InReport(3, "Attention", ("sweep", "comparison", "exponents", "crossovers", "frontier", "accounting")),
    perform="command:perform",
    files="command:draw",
    refuse_files="command:refuse_unwritable",
    plan="tables:plan",
    picture="live:ATTENTION",
    lines="live:AttentionLines",
    terms="sysbench.commands.report.method:attention_terms",
    foreseen="fold:taken_s",
    compared=("forward", "backward"),
    in_turns=True,
    findings="findings:findings",
    usual_tables="tables:usual",
)
