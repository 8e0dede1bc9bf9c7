"""The parent's side of a run: it starts workers, watches them from outside and writes down what happens."""
