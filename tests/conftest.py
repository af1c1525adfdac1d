"""Makes the helper modules of tests/support importable (``import peers``)."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "support"))
