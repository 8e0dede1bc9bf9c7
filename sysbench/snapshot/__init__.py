"""Memory snapshots of anyone's: read, turned into timelines, explained by category."""
