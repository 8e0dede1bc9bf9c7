"""Cells that are carried out side by side, elsewhere than in the one worker of a run."""
