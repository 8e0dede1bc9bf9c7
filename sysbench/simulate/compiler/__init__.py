"""What torch.compile makes of a step, for a GPU that is not there."""
