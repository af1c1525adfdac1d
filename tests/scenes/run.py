"""Runs one scene in this process: ``python run.py FILE FUNCTION [ARGUMENT ...]``.

Scenes are programs for a process of their own: they crash, fork, exit or are interrupted. They are
functions of the other files here; tests start them by `run_scene` of ``tests/support/scripts.py``.
"""

import importlib
import signal
import sys

if __name__ == "__main__":
    # A process in the background may be started with SIGINT ignored, and hands that on.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    file, function, *arguments = sys.argv[1:]
    getattr(importlib.import_module(f"tests.scenes.{file}"), function)(*arguments)
