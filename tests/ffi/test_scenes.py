"""Scenes of tests/scenes/ffi: threads, exits, signals and loading, each in a process of its own."""

from __future__ import annotations

import pytest

from tests.support.peers import peer

ORDERS = ["tvm_ffi first", "dlbridge first"]

# What a scene must not need: the peers, a compiler.
SCENES = [
    ("threads", "race", "5"),
    ("threads", "one_wrapper_per_object"),
    ("threads", "traced"),
    ("threads", "popitem"),
    ("threads", "containers"),
    ("threads", "fields"),
    ("threads", "backtraces"),
    ("threads", "forks_while_a_mapping_is_listed"),
    ("exits", "everything"),
    ("exits", "daemons_in_callbacks"),
    ("exits", "daemons_that_free_objects"),
    ("exits", "error_of_the_thread"),
    ("exits", "tensors"),
    *(
        ("exits", "left_behind", kind)
        for kind in ("function", "raise", "global", "opaque", "error", "bound")
    ),
    ("signals", "long_call"),
    ("signals", "callback"),
    ("signals", "dict_that_is_listed"),
    ("cycles", "objects"),
    ("cycles", "bound_calls"),
    ("cycles", "shapes"),
    ("loading", "mended"),
    ("loading", "no_backend_for_other_objects"),
    ("loading", "null_function"),
    ("loading", "bound_argument_that_moves"),
    ("loading", "keys_that_contain_themselves_later"),
    *(
        ("loading", "endless", kind)
        for kind in ("readonly", "readonly, inside", "convertible", "convertible, inside")
    ),
]
# What chance decides at an exit is tried several times.
OFTEN = {"everything": 3, "daemons_in_callbacks": 3, "daemons_that_free_objects": 16}


# They change what the import of the FFI finds, or look at it.
FRESH = [
    ("light", "is_light"),
    ("leaks", "leak"),
    *(("without_gil", name) for name in ("calls", "containers", "fields", "race")),
]


@pytest.mark.parametrize("scene", FRESH, ids=" ".join)
def test_scene_in_a_fresh_process(run_scene, scene):
    assert run_scene(*scene, fresh=True) == (0, "")


@pytest.mark.parametrize("scene", SCENES, ids=" ".join)
def test_scene(run_scene, scene):
    turns = OFTEN.get(scene[1], 1)
    assert [run_scene(*scene) for _ in range(turns)] == [(0, "")] * turns


@pytest.mark.stress
@pytest.mark.parametrize(
    "scene", [("threads", "race", "60"), ("exits", "daemons_that_free_objects")]
)
def test_scene_for_longer(run_scene, scene):
    turns = 1 if scene[0] == "threads" else 100
    assert [run_scene(*scene) for _ in range(turns)] == [(0, "")] * turns


@pytest.mark.parametrize(
    "scene",
    [
        ("threads", "modules"),
        ("exits", "ignored_failures_in_daemons"),
        ("loading", "module_stays_loaded"),
    ],
    ids=" ".join,
)
def test_scene_with_a_module(run_scene, plain_library, scene):
    assert run_scene(*scene, str(plain_library)) == (0, "")


@pytest.mark.parametrize(
    ("library", "words"),
    [
        ("/absent/libnothing.so", ["$DLBRIDGE_TVM_FFI_LIB", "libnothing.so"]),
        ("libc.so.6", ["lacks TVMFFIObjectIncRef"]),
        ("/tmp/\udcff.so", ["not UTF-8"]),
    ],
)
def test_a_library_that_is_refused(run_scene, library, words):
    env = {"DLBRIDGE_TVM_FFI_LIB": library}
    assert run_scene("loading", "refused", *words, env=env) == (0, "")


def test_an_object_whose_backend_cannot_be_used_is_carried_as_it_is(run_scene):
    env = {"DLBRIDGE_BACKENDS": "cpu"}
    assert run_scene("loading", "object_of_a_backend_that_is_off", env=env) == (0, "")


def test_a_kernel_cannot_write_to_a_memmap_opened_for_reading(run_scene, tmp_path):
    (tmp_path / "values.bin").write_bytes(bytes(24))
    assert run_scene("loading", "memmap", str(tmp_path / "values.bin")) == (0, "")


def test_system_exit_from_a_callback(run_scene):
    assert run_scene("exits", "system_exit") == (7, "")


def test_faulthandler_still_works(run_scene):
    code, output = run_scene("exits", "fault")
    assert code == "SIGSEGV"
    assert "Fatal Python error: Segmentation fault" in output
    assert "string_at" in output


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    "name",
    [
        *("functions_and_objects", "errors", "streams", "ctrl_c", "race", "containers"),
        *("moved_container", "types_of_python"),
    ],
)
def test_beside_tvm_ffi(run_scene, name, order):
    peer("tvm_ffi")
    assert run_scene("both", name, order) == (0, "")


@pytest.mark.parametrize("kind", ["tvm_ffi", "tvm_ffi, inside"])
def test_a_list_of_tvm_ffi_that_contains_itself_is_refused(run_scene, kind):
    peer("tvm_ffi")
    assert run_scene("loading", "endless", kind) == (0, "")
