"""A Tensor becomes any library's tensor."""
