"""The tests. Helper modules are imported by their whole names: ``tests.support.scripts``."""
