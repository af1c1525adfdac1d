"""Exit 0 if this machine has an OpenCL device, else 1. For the Makefile."""

import sys

import pyopencl

try:
    found = any(platform.get_devices() for platform in pyopencl.get_platforms())
except pyopencl.Error:
    found = False
sys.exit(0 if found else 1)
