"""The common tests of `suite.places` on this backend."""

from suite.places import *  # noqa: F403
