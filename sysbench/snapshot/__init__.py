"""Memory snapshots from any program: reading them, building timelines, and explaining memory by category."""

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
"""parameters       learned weights; of several ranks, this rank's shards of them
gradients        of parameters
optimizer state  created by or for the optimizer, and kept from step to step
activations      created by forward or loss and still live afterwards: outputs, and tensors saved for backward
inputs           token ids, target ids, and the model's constants (rotary angles, masks)
temporaries      all tensors that are freed sooner
communication    of several ranks: parameters gathered from them, and what collectives send and receive
workspace        of cuBLAS
unknown          in a snapshot of another program, what cannot be told
"""

CATEGORIES: tuple[Category, ...] = get_args(Category)
"""All of them, in the order in which they are shown."""
