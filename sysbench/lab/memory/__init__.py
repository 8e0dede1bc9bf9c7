"""Memory on the device of the worker: peaks, the allocation history, and the storages of tensors."""
