"""What axes are called at the head of a column."""

from __future__ import annotations

TITLES = {
    "device": "device",
    "size": "size",
    "batch": "batch",
    "ctx": "ctx",
    "mode": "mode",
    "attention": "attention",
    "execution": "execution",
    "optimizer": "optimizer",
    "precision": "precision",
    "warmup": "warm-up",
    "steps": "steps",
    "simulate": "simulated GPU",
    "heads": "heads",
    "implementation": "implementation",
    "dim": "d_model",
    "seq": "seq_len",
    "profiler": "profiler",
    "active": "active",
}
"""Every axis along which cells can differ, in the order in which they are named, with its heading."""
