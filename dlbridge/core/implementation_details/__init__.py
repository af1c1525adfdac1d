"""The details of CPython and numpy that dlbridge relies on.

They are outside the documented interfaces, or barely inside. Code that can be separated from
its callers is in this package. ``tests/core/test_implementation_details.py`` lists all of
them, with the places that rely on them and the tests that they hold. Run these tests first
with a new version of CPython or numpy.
"""

# May import: no other room.
