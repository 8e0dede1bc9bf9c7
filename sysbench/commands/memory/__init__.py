"""`sysbench memory`."""

from sysbench.command import Command

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
    usual_tables="tables:usual",
)
