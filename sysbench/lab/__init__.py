"""The measured workload: the Transformer, its attention implementations, and the training step with its phases."""
