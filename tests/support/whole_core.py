"""Imports all of dlbridge's core, for a process of which each fork would do that again."""

import importlib
import importlib.metadata
import pkgutil

import dlbridge.core

for _found in pkgutil.walk_packages(dlbridge.core.__path__, "dlbridge.core."):
    importlib.import_module(_found.name)
