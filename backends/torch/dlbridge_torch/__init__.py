"""The accelerators of torch for dlbridge, by torch's own objects. Importing this opens nothing."""

from .backend import TorchDevice, TorchStreams
from .family import TorchFamily

__all__ = ["TorchDevice", "TorchFamily", "TorchStreams"]
