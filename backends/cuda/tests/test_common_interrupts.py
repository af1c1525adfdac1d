"""The common tests of `suite.interrupts` on this backend."""

from suite.interrupts import *  # noqa: F403
