"""A simulated device in host memory: the template for backends, and a fixture for tests."""

from .backend import Array, Fake
from .stream import Stream

__all__ = ["Array", "Fake", "Stream"]
