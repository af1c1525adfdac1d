"""The public functions that move and make tensors: they put the rooms together."""
