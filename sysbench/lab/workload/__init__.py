"""What a training step works on: a model, its inputs, its loss and its optimizer; the built-in ones, or the user's."""
