"""The validation layer watches the whole suite; here, that it does."""

import pytest

from tests.support.expected_parts import lacking

MISUSE = """
from dlbridge_vulkan import Vulkan
from dlbridge_vulkan.copies import _copy_regions
from dlbridge_vulkan.library import ffi
backend = Vulkan()
a = backend.devices[0].allocate(64, 16)
b = backend.devices[0].allocate(64, 16)
beyond = ffi.new("VkBufferCopy[1]", [(0, 32, 256)])
if {misuse}:
    _copy_regions(b.resource[0], a.resource[0], 1, beyond)
backend.devices[0].queue.finish()
"""


@pytest.mark.parametrize("misuse", [True, False])
def test_the_layer_speaks_where_it_should(validated, run_python, tmp_path, misuse):
    """A copy beyond the end of a buffer is reported into the file that the tests read.

    Without the layer the other tests only show that nothing crashed.
    """
    if not validated:
        lacking("vulkan_validation", "needs the validation layer (vulkan-validationlayers)")
    log = tmp_path / "said.txt"
    (tmp_path / "vk_layer_settings.txt").write_text(
        "khronos_validation.debug_action = VK_DBG_LAYER_ACTION_LOG_MSG\n"
        "khronos_validation.report_flags = error,warn,perf\n"
        f"khronos_validation.log_filename = {log}\n"
    )
    done = run_python(MISUSE.format(misuse=misuse), VK_LAYER_SETTINGS_PATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert ("VUID-vkCmdCopyBuffer" in log.read_text()) == misuse
