"""Memory snapshots from any program: read them, build timelines, and divide memory into categories."""

from typing import Literal, get_args

Category = Literal[
    "parameters",
    "gradients",
    "optimizer state",
    "activations",
    "inputs",
    "temporaries",
    "communication",
    "workspace",
    "unknown",
]
"""parameters       learned weights; with several ranks, this rank's shards
gradients        gradients of parameters
optimizer state  created by or for the optimizer, and kept across steps
activations      created by forward or loss and still live afterwards: outputs, and tensors saved for backward
inputs           token ids, target ids, and the model's constants (rotary angles, masks)
temporaries      all other tensors: intermediate results that are not kept
communication    with several ranks: gathered parameters, and send and receive buffers of collectives
workspace        cuBLAS workspaces
unknown          in a snapshot of another program: allocations that cannot be classified
"""

CATEGORIES: tuple[Category, ...] = get_args(Category)
"""All categories, in display order."""
