"""The common tests of `suite.capture` on this backend."""

from suite.capture import *  # noqa: F403
