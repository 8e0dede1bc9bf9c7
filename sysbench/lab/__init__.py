"""What is measured: the Transformer, its attention kinds, and the training step with its phases."""
