"""The common tests of `suite.failures` on this backend."""

from suite.failures import *  # noqa: F403
