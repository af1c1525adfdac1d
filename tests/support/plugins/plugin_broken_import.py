"""A backend whose module needs what is not installed."""

import a_module_that_nobody_has  # noqa: F401 - that it fails is the point
