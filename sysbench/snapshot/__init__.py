"""Memory snapshots from any program: reading them, building timelines, and explaining memory by category."""

CATEGORIES = (
    "parameters",
    "gradients",
    "optimizer state",
    "activations",
    "inputs",
    "temporaries",
    "communication",
    "workspace",
    "unknown",
)
"""Memory categories, in display order. Activations are kept for backward."""
