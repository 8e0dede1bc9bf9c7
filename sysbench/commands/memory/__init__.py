"""See where the memory of a step goes and whether it fits, on a GPU or without one."""

from sysbench.command import Command, ReportLayout

COMMAND = Command(
    package=__name__,
    help=__doc__,
    also_called="mem vram oom snapshot peak",
    report=ReportLayout(
        2,
        "Memory of a training step",
        ("summary", "ranks", "phases", "categories"),
        ("largest", "modules"),
        picture_caption="Memory over time by category",
    ),
    perform="command:perform",
    suited="command:suited",
    gate="verdicts:gate",
    show="command:show",
    refuse_files="command:validate_output_formats",
    headlines="findings:headlines",
    screen="live:MemoryScreen",
    terms="terms:terms",
    measures="compared:measures",
    step_numbers="compared:step_numbers",
    artefact="snapshot_file:read",
    default_tables="tables:default_tables",
)
