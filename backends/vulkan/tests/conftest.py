"""The whole suite runs under Vulkan's validation layer, and beside SwiftShader where it is.

Both must be asked for before the first VkInstance is made, and so when this
file is loaded.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
from pathlib import Path

import cffi
import pytest

from backends.vulkan.tests.held_buffers import allocate, free
from dlbridge.protocol import Span
from tests.support.expected_parts import backend_or_skip, lacking
from tests.support.frozen_objects import older_objects_are_frozen  # noqa: F401 - for pytest to find
from tests.support.nightly_parts import pytest_itemcollected  # noqa: F401 - for pytest to find
from tests.support.not_run import pytest_terminal_summary  # noqa: F401 - for pytest to find
from tests.support.scripts import finished
from tests.support.temporary_folders import new_folder, pytest_sessionfinish  # noqa: F401 - for pytest to find
from tests.support.working_drivers import leave_out

HERE = Path(__file__).resolve().parent
TEMPORARY = new_folder("vulkan")
LOG = Path(TEMPORARY) / "validation.txt"

# Synchronisation is checked inside command buffers and across submissions.
CHECKS = (
    "VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT",
    "VALIDATION_CHECK_ENABLE_SYNCHRONIZATION_VALIDATION_QUEUE_SUBMIT",
)
SETTINGS = f"""\
khronos_validation.debug_action = VK_DBG_LAYER_ACTION_LOG_MSG
khronos_validation.report_flags = error,warn,perf
khronos_validation.enables = {",".join(CHECKS)}
khronos_validation.log_filename = {LOG}
"""

VALIDATION = {
    "VK_INSTANCE_LAYERS": "VK_LAYER_KHRONOS_validation",
    "VK_LAYER_SETTINGS_PATH": TEMPORARY,
}

# A loader may go without a layer that it does not find, and say nothing.
OPEN = """
import pathlib, sys
from dlbridge_vulkan.instance import create_instance
instance, maps = create_instance(), pathlib.Path("/proc/self/maps")
sys.exit(maps.exists() and "validation" not in maps.read_text())
"""


def run(code: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run *code* in a new process, whose crash is then only its own."""
    return finished(code, *arguments, env=environment)


def swiftshader() -> Path | None:
    """The second driver: DLBRIDGE_SWIFTSHADER, or what swiftshader.py has fetched."""
    named = os.environ.get("DLBRIDGE_SWIFTSHADER")
    fetched = HERE.parents[2] / "build" / "swiftshader" / "libvk_swiftshader.so"
    path = Path(named) if named else fetched
    return path if path.is_file() else None


def _drivers() -> list[str]:
    """The driver files that the loader would read."""
    named = os.environ.get("VK_DRIVER_FILES") or os.environ.get("VK_ICD_FILENAMES")
    if named:
        return named.split(":")
    folders = map(Path, ("/etc/vulkan/icd.d", "/usr/share/vulkan/icd.d"))
    return [str(file) for folder in folders for file in sorted(folder.glob("*.json"))]


def _prepare() -> bool:
    """Set the environment of every VkInstance to come; whether the layer is there."""
    (Path(TEMPORARY) / "vk_layer_settings.txt").write_text(SETTINGS)
    second = swiftshader()
    if second is not None:
        driver = Path(TEMPORARY) / "swiftshader_icd.json"
        content = {"library_path": str(second), "api_version": "1.3.0"}
        driver.write_text(json.dumps({"file_format_version": "1.0.0", "ICD": content}))
        # The loader lists the last file's devices first, unless it sorts them by
        # vendor: the machine's own driver shall be vulkan:0.
        # pytest-xdist's processes inherit the environment of the first: its file goes.
        others = [file for file in _drivers() if Path(file).name != driver.name]
        os.environ["VK_DRIVER_FILES"] = ":".join([str(driver), *others])
        os.environ["VK_LOADER_DISABLE_SELECT"] = "1"
    if run(OPEN, **VALIDATION).returncode:
        return False
    os.environ.update(VALIDATION)
    return True


leave_out("vulkan")
VALIDATED = _prepare()


def messages() -> str:
    """What the validation layer has said so far."""
    return LOG.read_text() if LOG.exists() else ""


@pytest.fixture(scope="session")
def run_python():
    """``run_python(code, *arguments, **environment)``: in a new process."""
    return run


@pytest.fixture(scope="session")
def validated():
    """Whether the validation layer watches."""
    return VALIDATED


@pytest.fixture(scope="session")
def second(vulkan):
    """The device_id of a second device, or a skip."""
    if vulkan.device_count() < 2:
        lacking("swiftshader", "one Vulkan device only; tests/swiftshader.py fetches a second")
    return 1


@pytest.fixture
def compiled(tmp_path):
    """``compiled(glsl)``: the module that glslang makes."""
    if shutil.which("glslangValidator") is None:
        lacking("glslang", "needs glslangValidator (Debian: glslang-tools)")

    def compile_(source, target="vulkan1.2"):
        (tmp_path / "x.comp").write_text(source)
        command = ["glslangValidator", "-V", "--target-env", target, tmp_path / "x.comp"]
        subprocess.run([*command, "-o", tmp_path / "x"], check=True, capture_output=True)
        return (tmp_path / "x").read_bytes()

    return compile_


@pytest.fixture(scope="session")
def scale_spirv():
    return (HERE / "shaders" / "scale.spv").read_bytes()


@pytest.fixture(scope="session")
def scale(scale_spirv):
    """``scale(backend, data, count, factor)``: values *= factor."""
    kernels = {}

    def run_scale(backend, data, count, factor, rounds=1, device_id=0):
        key = id(backend), device_id
        if key not in kernels:
            kernels[key] = backend.kernel(
                scale_spirv, buffers=1, push_nbytes=12, device_id=device_id
            )
        binding = (backend.devices.buffer(data), 0, 4 * count)
        push = struct.pack("=IIf", count, rounds, factor)
        return kernels[key].run([binding], (-(-count // 64), 1), push)

    return run_scale


class Gate:
    """A submission that waits for the host: what is queued after it is not done before `open`."""

    def __init__(self, queue):
        from dlbridge_vulkan.library import Objects, constant, ffi, load, struct

        self.queue, self.handles = queue, Objects()
        kind = struct(
            "VkSemaphoreTypeCreateInfo", semaphoreType=constant("VK_SEMAPHORE_TYPE_TIMELINE")
        )
        info = struct("VkSemaphoreCreateInfo", pNext=kind)
        self.semaphore = self.handles.create(queue.device, "Semaphore", info)
        value, where = ffi.new("uint64_t[1]", [1]), ffi.new("VkPipelineStageFlags[1]")
        where[0] = constant("VK_PIPELINE_STAGE_ALL_COMMANDS_BIT")
        order = struct(
            "VkTimelineSemaphoreSubmitInfo", waitSemaphoreValueCount=1, pWaitSemaphoreValues=value
        )
        info = struct(
            "VkSubmitInfo",
            pNext=order,
            waitSemaphoreCount=1,
            pWaitSemaphores=self.semaphore,
            pWaitDstStageMask=where,
        )
        with queue.lock:
            assert load().vkQueueSubmit(queue.handle, 1, info, 0) == 0
        self.is_open = False

    def open(self):
        """By vkSignalSemaphore, which dlbridge does not call and so does not declare."""
        from dlbridge_vulkan.library import ffi, load

        if self.is_open:
            return
        self.is_open, declared = True, cffi.FFI()
        declared.cdef("typedef struct { int type; void *next; uint64_t semaphore, value; } Info;")
        info = declared.new("Info *", [1000207005, declared.NULL, int(self.semaphore[0]), 1])
        signal = load().vkGetDeviceProcAddr(self.queue.device, b"vkSignalSemaphore")
        device, function = (int(ffi.cast("uintptr_t", it)) for it in (self.queue.device, signal))
        assert declared.cast("int (*)(uintptr_t, Info *)", function)(device, info) == 0


@pytest.fixture
def gate():
    """``gate(backend)``: a closed `Gate`, open at the end of the test whatever happens."""
    made = []

    def close(backend, device_id=0):
        made.append(Gate(backend.devices[device_id].queue))
        return made[-1]

    yield close
    for each in made:
        each.open()
        each.queue.finish()
        each.handles.destroy()


@pytest.fixture
def delay(scale, gate, monkeypatch):
    """``delay(backend, data)``: work on *data*, which it leaves as it is.

    It is done when somebody waits for the queue, and not before.
    """
    from dlbridge_vulkan.queue import Queue

    gates, wait = [], Queue.wait

    def opening(queue, value):
        for each in gates if not queue.done(value) else ():
            each.open()
        return wait(queue, value)

    def run_delay(backend, data, device_id=0):
        gates.append(gate(backend, device_id))
        return scale(backend, data, 1, 1.0, device_id=device_id)

    monkeypatch.setattr(Queue, "wait", opening)
    return run_delay


@pytest.fixture(autouse=True)
def validation_is_silent():
    """Each test fails on the layer's first word about it."""
    before = len(messages())
    yield
    assert messages()[before:] == ""


@pytest.fixture(scope="session")
def vulkan():
    """The backend as users get it, or a skip with the reason."""
    return backend_or_skip("vulkan")


@pytest.fixture(scope="session")
def views(vulkan):
    """Skips where the host has no views of the memory of device 0."""
    data = allocate(vulkan, 0, 64, 16, 0)
    refusal = vulkan.host_view_refusal(0, data)
    free(vulkan, 0, data, 0)
    if refusal:
        pytest.skip(refusal)


@pytest.fixture(scope="session")
def staged(vulkan):
    """A backend of its own that treats all device memory as unmapped."""
    from dlbridge_vulkan import Vulkan

    return Vulkan(staged=True)


@pytest.fixture(params=["mapped", "staged"])
def either(request):
    """Both backends, one after the other."""
    return request.getfixturevalue({"mapped": "vulkan", "staged": "staged"}[request.param])


def _lavapipe():
    """The library of lavapipe, by its driver file."""
    for file in map(Path, _drivers()):
        if file.is_file():
            library = json.loads(file.read_text())["ICD"]["library_path"]
            if "lvp" in library:
                return library
    return None


@pytest.fixture(scope="session")
def simulated_library():
    """The simulated device of tests/simulated, compiled; or a skip with the reason."""
    compiler = shutil.which(os.environ.get("CC", "gcc"))
    target = Path(TEMPORARY) / "libsimulated.so"
    flags = ["-std=gnu17", "-O1", "-g", "-shared", "-fPIC", "-pthread"]
    source = HERE / "simulated" / "simulated.c"
    reason = "" if compiler and _lavapipe() else "needs gcc and lavapipe"
    if not reason:
        command = [compiler, *flags, "-o", str(target), str(source), "-ldl"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode and "vulkan.h" not in done.stderr:
            pytest.fail(done.stderr)
        if done.returncode:
            reason = "needs Vulkan's headers (Debian: libvulkan-dev)"
    if reason:
        lacking("vulkan_headers", reason)
    return target


@pytest.fixture(scope="session")
def drivers():
    """The driver files of this machine."""
    return _drivers()


@pytest.fixture(scope="session")
def simulate(vulkan, simulated_library):
    """``simulate(KIND="discrete", ...)``: a backend on such a device alone.

    The words are those of tests/simulated/README.md, without their prefix.
    """
    from dlbridge_vulkan import Vulkan

    made = []

    def make(*, also=(), **words):
        library = Path(TEMPORARY) / f"libsimulated{len(made)}.so"
        shutil.copy(simulated_library, library)
        made.append(library)
        with pytest.MonkeyPatch.context() as patch:
            for name, value in _simulation(library, also, **words).items():
                patch.setenv(name, value)
            return Vulkan()

    return make


@pytest.fixture
def simulated_environment(simulated_library):
    """The environment of a process whose only Vulkan device is the simulated one."""
    return _simulation(simulated_library)


def _simulation(library, also=(), **words):
    """The environment in which Vulkan has the simulated device of *library*."""
    driver = library.with_suffix(".json")
    content = {"library_path": str(library), "api_version": "1.3.0"}
    driver.write_text(json.dumps({"file_format_version": "1.0.0", "ICD": content}))
    environment = {f"SIMULATED_{name}": str(value) for name, value in words.items()}
    environment["SIMULATED_DRIVER"] = _lavapipe()
    environment["VK_DRIVER_FILES"] = ":".join([str(driver), *also])
    return environment


@pytest.fixture(scope="session")
def discrete(simulate):
    """A discrete GPU: a window of 256 MiB, 256-byte alignment, 128 MiB ranges, no import."""
    return simulate()


@pytest.fixture(scope="session")
def integrated(simulate):
    """An APU with a carve-out of 256 MiB, that imports host memory."""
    return simulate(
        KIND="integrated",
        HEAPS="268435456:1,4294967296:0",
        TYPES="1:0,6:1,7:0,14:1",
        ALIGNMENT=64,
        NO_IMPORT=0,
    )


class Tensors:
    """Allocations of one backend, freed at the end of the test."""

    def __init__(self, backend, device_id=0):
        self.backend = backend
        self.device_id = device_id
        self.live = []

    def new(self, nbytes, alignment=256):
        data = allocate(self.backend, self.device_id, nbytes, alignment, 0)
        self.live.append(data)
        return data

    def of(self, content):
        view = memoryview(content).cast("B")
        data = self.new(len(view))
        self.backend.copy_from_host(Span(self.device_id, data, 0, len(view)), view, 0)
        return data

    def bytes(self, data, nbytes, offset=0):
        into = bytearray(nbytes)
        self.backend.copy_to_host(
            Span(self.device_id, data, offset, len(into)), memoryview(into), 0
        )
        self.backend.synchronize(self.device_id, 0)
        return bytes(into)

    def allocation(self, data):
        return self.backend.devices.buffer(data)

    def close(self):
        for data in self.live:
            free(self.backend, self.device_id, data)


@pytest.fixture(scope="module")
def exporting(vulkan):
    """A backend whose tensors can be exported; the validation layer watches it, too."""
    from dlbridge_vulkan import Vulkan

    made = Vulkan(exportable=True)
    if made.devices[0].export_refusal:
        pytest.skip(made.devices[0].export_refusal)
    return made


@pytest.fixture
def tensors(vulkan):
    made = Tensors(vulkan)
    yield made
    made.close()


@pytest.fixture
def each(either):
    made = Tensors(either)
    yield made
    made.close()
