"""The workload of a training step: a model, its inputs, its loss and its optimizer; built-in, or the user's."""
