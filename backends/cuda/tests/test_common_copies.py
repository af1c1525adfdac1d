"""The common tests of `suite.copies` on this backend."""

from suite.copies import *  # noqa: F403
