"""The child's side of a run: the process in which torch runs and cells are measured."""
