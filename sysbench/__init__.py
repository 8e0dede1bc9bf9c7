"""sysbench: where the time and the memory of a Transformer training step go."""

__version__ = "0.1.0"
