"""USM memory of SYCL devices for dlbridge, by dpctl. Importing this opens no library."""

from .backend import OneAPI

__all__ = ["OneAPI"]
