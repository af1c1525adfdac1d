"""Intel's OpenCL runtime for CPUs, which comes with the test packages of the oneAPI backend."""

import sys
from pathlib import Path

RUNTIME = Path(sys.prefix, "lib", "libintelocl.so")
