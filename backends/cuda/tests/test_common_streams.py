"""The common tests of `suite.streams` on this backend."""

from suite.streams import *  # noqa: F403
