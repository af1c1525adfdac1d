"""The tests of this folder on the simulator; beside `test_drivers`, which takes as long."""

import pytest

from .test_drivers import check

pytestmark = pytest.mark.exhaustive


def test_everything_on_the_simulator(tmp_path):
    check("oclgrind", tmp_path)
