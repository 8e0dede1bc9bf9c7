"""The `sysbench memory` command."""

from sysbench.command import Command, InReport

COMMAND = Command(
    name="memory",
    package=__name__,
    help="See where the memory of a step goes and whether it fits, on a GPU or without one.",
    spec="spec:MemorySpec",
    cell="spec:MemoryCell",
    options="spec:MemoryOptions",
    record="record:MemoryRecord",
    headlines="findings:headlines",
    picture="live:MEMORY",
    lines="live:MemoryLines",
    terms="sysbench.commands.report.method:of_memory",
    report=InReport(
        2,
        "Memory of a training step",
        ("summary", "grid", "phases", "categories", "state", "residual"),
        ("largest", "modules"),
        kept_picture="Memory over time by category",
    ),
    usual_tables="tables:usual",
)
