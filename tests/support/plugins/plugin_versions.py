"""Backends written for other versions of the contract."""

from plugin_shared import Shared


class Outdated(Shared):
    api = 1


class Newer(Shared):
    api = 3
