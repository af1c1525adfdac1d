"""The tensor: metadata, the memory under it and its owner, views."""
