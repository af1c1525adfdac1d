"""The common tests of `suite.memory` on this backend."""

from suite.memory import *  # noqa: F403
