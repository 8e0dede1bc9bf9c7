"""Knobs of a training step that change what is kept, in which format, or how it is computed, but not the result."""
