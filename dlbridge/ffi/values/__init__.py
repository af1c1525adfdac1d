"""Values across the C interface: numbers, text, tensors, errors, and references to objects."""
