"""dlbridge moves tensors between array libraries and devices."""
