"""The workload of a training step, built-in or the user's: a model, its inputs, its loss and its optimizer."""
