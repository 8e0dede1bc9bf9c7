"""Operators that stand for kernels of other libraries where there is no data: they have a name and a shape."""

from __future__ import annotations

import torch

LIBRARY = torch.library.Library("sysbench", "DEF")
"""Where knobs define them; simulations see them, and predictions know what they move."""
