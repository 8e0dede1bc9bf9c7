"""Memory snapshots from any program: reading them, building timelines, and explaining memory by category."""
