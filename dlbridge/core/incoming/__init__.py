"""Any library's tensor becomes a Tensor."""
