"""The common tests of `suite.threads` on this backend."""

from suite.threads import *  # noqa: F403
