"""A pretended device in host memory: template, fixture and documentation of a backend."""

from .backend import Array, Fake
from .stream import Stream

__all__ = ["Array", "Fake", "Stream"]
