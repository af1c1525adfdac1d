"""What a kernel knows of its module: what it needs, and which of its bindings it only reads."""

import io
import struct
from pathlib import Path

import numpy as np
import pytest
from dlbridge_vulkan.spirv import MAGIC, Module

import dlbridge as bridge
from dlbridge.diagnosis import kernels
from dlbridge.errors import ExchangeError

TWO = """#version 450
layout(local_size_x = 64) in;
layout(set = 0, binding = 0) buffer A { float a[]; };
layout(set = 0, binding = 1) buffer B { float b[]; };
layout(push_constant) uniform Push { uint n; float f; };
void main() { uint i = gl_GlobalInvocationID.x; if (i < n) b[i] = a[i] * f; }
"""
TARGETS = "vulkan1.0", "vulkan1.2", "vulkan1.3"  # SPIR-V 1.0; 1.5; 1.6, as entry points list more


def check_layout(spirv, entry, buffers, push_nbytes):
    Module(spirv).check(entry, buffers, push_nbytes)


@pytest.mark.parametrize("target", TARGETS)
def test_what_a_shader_needs(compiled, target):
    spirv = compiled(TWO, target)
    check_layout(spirv, "main", 2, 8)
    check_layout(spirv, "main", 3, 12)  # more does no harm
    for given in (0, 4):
        message = (
            rf"^the shader's push block has 8 bytes, and push_nbytes={given} was given; "
            "pass push_nbytes=8$"
        )
        with pytest.raises(ValueError, match=message):
            check_layout(spirv, "main", 2, given)
    message = (
        r"^the shader uses the bindings \[0, 1\], and buffers=1 was given; pass buffers=2, and any "
        "tensor for a binding that it does not use$"
    )
    with pytest.raises(ValueError, match=message):
        check_layout(spirv, "main", 1, 8)


@pytest.mark.parametrize("given", [{"buffers": 2}, {"buffers": 2, "push_nbytes": 4},
                                   {"buffers": 1, "push_nbytes": 8}])  # fmt: skip
def test_a_kernel_is_refused_when_it_is_made(vulkan, compiled, given):
    """Its call would end the process, or leave zeros."""
    spirv = compiled(TWO)
    with pytest.raises(ValueError, match=r"pass (push_nbytes=8$|buffers=2)"):
        vulkan.kernel(spirv, **given)
    kernel = vulkan.kernel(spirv, buffers=2, push_nbytes=8)
    x = bridge.to_device(np.arange(8, dtype="float32"), "vulkan:0", copy=True)
    y = bridge.zeros(8, "float32", "vulkan:0")
    kernel(x, y, groups=1, push=struct.pack("=If", 8, 2.0))
    assert bridge.to_device(y, "cpu").tolist() == [2.0 * i for i in range(8)]


HEAD = "#version 450\n#extension GL_EXT_shader_explicit_arithmetic_types : require\n"
PUSH = """
layout(constant_id = 3) const uint COUNT = 2;
layout(set = 0, binding = 0) buffer A {{ float a[]; }};
struct Pair {{ vec3 x; float y; }};
layout(push_constant) uniform Push {{ {members} }} p;
void main() {{ a[0] = float({use}); }}
"""


@pytest.mark.parametrize(
    ("members", "use", "nbytes"),
    [
        ("float x;", "p.x", 4),
        ("float x; vec3 y;", "p.x", 28),  # the whole block, whatever of it is used
        ("layout(offset = 16) float x;", "p.x", 20),
        ("layout(offset = 8) float x; layout(offset = 0) float y;", "p.x", 12),
        ("double x; float y;", "p.x", 12),
        ("mat4 m;", "p.m[0].x", 64),
        ("mat3 m;", "p.m[0].x", 44),
        ("layout(row_major) mat3x2 m;", "p.m[0].x", 28),
        ("layout(column_major) mat3x2 m;", "p.m[0].x", 24),
        ("mat2 m[3];", "p.m[0][0].x", 48),
        ("float x[5];", "p.x[1]", 20),
        ("Pair x[2]; float y;", "p.y", 36),
        ("Pair x[2];", "p.x[1].y", 32),
        ("uint8_t x; uint8_t y;", "p.x", 2),
        ("uint16_t x; int64_t y; f16vec3 z;", "p.x", 22),
        ("float x[COUNT];", "p.x[0]", 8),  # its default: kernels specialize nothing
    ],
)
def test_the_end_of_a_push_block(compiled, members, use, nbytes):
    """Members have the same decorations for each target; `test_what_a_shader_needs` has them all."""
    spirv = compiled(HEAD + PUSH.format(members=members, use=use))
    check_layout(spirv, "main", 1, nbytes)
    given, rounded = nbytes - 1, -(-nbytes // 4) * 4
    message = (
        f"push block has {nbytes} bytes, and push_nbytes={given} .* pass push_nbytes={rounded}$"
    )
    with pytest.raises(ValueError, match=message):
        check_layout(spirv, "main", 1, given)


def test_what_the_module_does_not_say_is_not_refused(compiled):
    """An array of a number that the driver computes."""
    source = PUSH.replace("COUNT = 2;", "COUNT = 2; const uint TWICE = COUNT * 2;")
    check_layout(
        compiled(HEAD + source.format(members="float x[TWICE];", use="p.x[0]")), "main", 1, 0
    )


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_declared_and_not_used_does_not_count(compiled, target):
    source = TWO.replace("if (i < n) b[i] = a[i] * f;", "a[i] = 1;")
    check_layout(compiled(source, target), "main", 1, 0)


@pytest.mark.parametrize("target", TARGETS)
def test_functions_that_are_called_count(compiled, target):
    head = TWO.split("void main", maxsplit=1)[0]
    source = head + "void inner(uint i) { b[i] = a[i] * f; }\nvoid outer(uint i) { inner(i); }\n"
    spirv = compiled(source + "void main() { outer(gl_GlobalInvocationID.x); }", target)
    with pytest.raises(ValueError, match="pass push_nbytes=8"):
        check_layout(spirv, "main", 2, 0)
    with pytest.raises(ValueError, match="pass buffers=2"):
        check_layout(spirv, "main", 1, 8)


@pytest.mark.parametrize(
    "use",
    [
        "atomicAdd(c[0], 1);",
        "c[0] = uint(c.length());",
        "atomicExchange(c[0], 1);",
        "c[1] = 5;",
        "uint x = c[1]; a[0] = x;",
    ],
)
def test_uses_of_every_kind(compiled, use):
    source = f"""#version 450
    layout(set = 0, binding = 0) buffer A {{ float a[]; }};
    layout(set = 0, binding = 1) buffer C {{ uint c[]; }};
    void main() {{ {use} }}"""
    with pytest.raises(ValueError, match="pass buffers=2"):
        check_layout(compiled(source), "main", 1, 0)


def test_a_gap_between_bindings(compiled):
    spirv = compiled(TWO.replace("binding = 1", "binding = 3"))
    check_layout(spirv, "main", 4, 8)
    message = (
        r"uses the bindings \[0, 3\], and buffers=2 was given; pass buffers=4, and any tensor for a "
        "binding that it does not use"
    )
    with pytest.raises(ValueError, match=message):
        check_layout(spirv, "main", 2, 8)


@pytest.mark.parametrize(
    ("was", "becomes", "message"),
    [
        ("set = 0, binding = 1", "set = 2, binding = 1", "binding 1 is of set 2; .* of set 0"),
        ("binding = 0) buffer A { float a[]; };", "binding = 0) uniform A { float a[4]; };",
         "binding 0 is a uniform buffer; .* declare it as `buffer`"),
        ("buffer A { float a[]; };", "buffer A { float z[]; } y[2];\n#define a y[i % 2].z",
         "binding 0 is an array of 2 descriptors; .* one storage buffer to each"),
        ("buffer A { float a[]; };", "uniform sampler2D s;\n#define a float[](textureLod(s, vec2(0), 0).x)",
         "binding 0 is an image or a sampler; .* one storage buffer"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("target", TARGETS)
def test_what_is_not_a_storage_buffer_of_set_0(compiled, was, becomes, message, target):
    source = TWO.replace(was, becomes).replace("a[i] * f", "float(a[i] * f)")
    with pytest.raises(ValueError, match=message):
        check_layout(compiled(source, target), "main", 2, 8)


# Modules made by hand


def module(*instructions):
    words = [MAGIC, 0x00010300, 0, 100, 0]
    for code, *operands in instructions:
        words += [(len(operands) + 1) << 16 | code, *operands]
    return struct.pack(f"<{len(words)}I", *words)


def text(name):
    raw = name.encode() + b"\0"
    return struct.unpack(f"<{-(-len(raw) // 4)}I", raw.ljust(-(-len(raw) // 4) * 4, b"\0"))


TYPES = [
    (15, 5, 50, *text("one")),
    (15, 5, 60, *text("two")),
    (72, 10, 0, 35, 0),
    (72, 10, 1, 35, 4),
    (22, 9, 32),
    (30, 10, 9, 9),
    (32, 11, 9, 10),
    (59, 11, 4, 9),  # a push block, of the id 4
]
LOAD = (61, 9, 70, 4)


def function(number, *body):
    return (54, 1, number, 0, 2), *body, (56,)


def test_only_the_entry_point_that_is_named_counts():
    spirv = module(*TYPES, *function(50), *function(60, LOAD))
    check_layout(spirv, "one", 1, 0)
    with pytest.raises(ValueError, match="push block has 8 bytes"):
        check_layout(spirv, "two", 1, 0)


def test_the_names_of_the_compute_shaders(vulkan, scale_spirv):
    spirv = module((15, 5, 1, *text("main")), (15, 4, 2, *text("pixels")), (15, 5, 3, *text("two")))
    assert Module(spirv).entries == {"main": 1, "two": 3}
    assert Module(b"").entries == {}
    with pytest.raises(ValueError, match=r"entry='scale': .* it has 'main'"):
        vulkan.kernel(scale_spirv, buffers=1, push_nbytes=12, entry="scale")


def test_functions_that_call_each_other_end():
    spirv = module(*TYPES, *function(50, (57, 1, 72, 60)), *function(60, (57, 1, 73, 50), LOAD))
    with pytest.raises(ValueError, match="push block has 8 bytes"):
        check_layout(spirv, "one", 1, 0)


def test_types_that_contain_themselves_are_not_followed():
    circle = [(30, 10, 9, 12), (30, 12, 10), (30, 9, 10), *TYPES[:2], *TYPES[6:]]
    check_layout(module(*circle, *function(50, LOAD)), "one", 1, 0)


def test_types_whose_names_are_out_of_order():
    """Ids have no order."""
    other = [(72, 3, 0, 35, 4), (22, 9, 32), (30, 3, 9), (32, 2, 9, 3), (59, 2, 4, 9)]
    with pytest.raises(ValueError, match="push block has 8 bytes"):
        check_layout(module(*TYPES[:2], *other, *function(50, LOAD)), "one", 1, 0)


@pytest.mark.parametrize("cut", [*range(0, 60, 3), *range(60, 260, 12)])
def test_what_is_not_well_formed_ends_the_reading(cut):
    whole = module(*TYPES, *function(50, LOAD))
    check_layout(whole[:cut], "one", 1, 8)
    check_layout(whole[:20] + b"\0" * cut, "one", 1, 0)
    whole = module(BINDING, SET, STRUCT, POINTER, VARIABLE)
    assert writable_bindings(whole[:cut]) <= {5}
    assert writable_bindings(whole[:20] + b"\0" * cut) == set()


@pytest.mark.parametrize("seed", range(20))
def test_damaged_modules_are_refused_or_taken(seed):
    """Whatever words they have: ValueError and no other error."""
    random = np.random.default_rng(seed)
    matrix = [
        *((23, 7, 9, 3), (24, 6, 7, 2), (28, 5, 6, 3), (72, 3, 0, 7, 16), (72, 3, 1, 5)),
        *((72, 3, 0, 35, 0), (72, 3, 1, 35, 64), (30, 3, 5, 6), (32, 2, 9, 3), (59, 2, 4, 9)),
    ]
    whole = module(*TYPES[:2], TYPES[4], (43, 9, 3, 3), *matrix, *function(50, LOAD))
    for _ in range(200):
        words = np.frombuffer(whole, "<u4").copy()
        for index in random.integers(5, len(words), 3):
            words[index] = random.choice([0, 1, 3, 5, 9, words[index] ^ 1, words[index] + 1])
        try:
            check_layout(words.tobytes(), "one", 1, 4)
        except ValueError as exc:
            assert "shader" in str(exc)  # noqa: PT017 - any other error fails


def test_what_the_packages_own_modules_need(scale_spirv):
    check_layout(scale_spirv, "main", 1, 12)
    blur = Path(kernels.__file__).with_name("box_blur.spv")
    check_layout(blur.read_bytes(), "main", 2, 32)
    with pytest.raises(ValueError, match="pass push_nbytes=12"):
        check_layout(scale_spirv, "main", 1, 8)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("scale.spv", r"not 'scale.spv': if that is its file, pass open\(path, 'rb'\).read\(\)"),
        (Path("scale.spv"), r"pass open\(path, 'rb'\).read\(\)"),
        (io.BytesIO(), "BytesIO"),
        (5, "must be the bytes of a SPIR-V module, not int"),
    ],
)
def test_a_path_or_a_file_is_not_a_module(vulkan, given, message):
    with pytest.raises(TypeError, match=message):
        vulkan.kernel(given, buffers=1)


def test_wrong_names_of_arguments_name_the_class(vulkan, scale_spirv):
    """No word of the inside stands in the message of Python."""
    with pytest.raises(TypeError, match=r"^Vulkan\.kernel\(\) got an unexpected keyword"):
        vulkan.kernel(scale_spirv, buffers=1, entry_point="main")
    for member in (vulkan.adopt_device, vulkan.wrap_buffer, vulkan.close_device):
        with pytest.raises(TypeError, match=rf"^Vulkan\.{member.__name__}\(\)"):
            member()


# Bindings that are only read


READONLY = """#version 450
layout(local_size_x = 64) in;
layout(set = 0, binding = 0) readonly buffer A {{ float a[]; }};
layout(set = 0, binding = 1) {first} buffer B {{ {second} float b; {third} float c[]; }};
layout(set = 0, binding = 2) buffer C {{ float d[]; }} many[2];
void main() {{ many[0].d[0] = a[0] + b + c[0]; {body} }}
"""

COPY = Path(__file__).parent / "shaders" / "strided_copy.spv"
"""Marks its first binding as one that is only read."""

STRUCT, POINTER, VARIABLE = (30, 10, 11, 11), (32, 12, 12, 10), (59, 12, 13, 12)
BINDING, SET = (71, 13, 33, 5), (71, 13, 34, 0)


def writable_bindings(spirv):
    return Module(spirv).writable_bindings()


@pytest.mark.parametrize(
    ("extra", "writable"),
    [
        ([], {5}),
        ([(71, 13, 24)], set()),  # the variable is NonWritable
        ([(72, 10, 0, 24), (72, 10, 1, 24)], set()),  # all members of the block are
        ([(72, 10, 1, 24)], {5}),  # one member of two is
        ([(71, 13, 34, 1)], set()),  # it is in another set
    ],
)
def test_what_the_decorations_say(extra, writable):
    first = [BINDING, SET, *extra]
    assert writable_bindings(module(*first, STRUCT, POINTER, VARIABLE)) == writable


def test_a_binding_with_two_variables_is_written_by_one():
    """Aliases: one of them is enough."""
    second = [(71, 14, 33, 5), (71, 14, 24), (59, 12, 14, 12)]
    assert writable_bindings(module(BINDING, SET, *second, STRUCT, POINTER, VARIABLE)) == {5}


def test_what_the_packages_own_modules_write(scale_spirv):
    assert writable_bindings(scale_spirv) == {0}
    assert writable_bindings(Path(kernels.__file__).with_name("box_blur.spv").read_bytes()) == {1}
    assert writable_bindings(COPY.read_bytes()) == {1}


@pytest.mark.parametrize(
    ("words", "writable"),
    [
        ({"first": "readonly", "second": "", "third": "", "body": ""}, {2}),
        ({"first": "", "second": "readonly", "third": "readonly", "body": ""}, {2}),
        ({"first": "", "second": "readonly", "third": "", "body": ""}, {1, 2}),
        ({"first": "", "second": "", "third": "", "body": "b = 1;"}, {1, 2}),
    ],
)
def test_what_glslang_writes(compiled, words, writable):
    """``readonly`` on the block, on its members, and arrays of buffers."""
    for target in ("vulkan1.0", "vulkan1.3"):
        assert writable_bindings(compiled(READONLY.format(**words), target)) == writable


def readonly_tensor(vulkan):
    info = vulkan.device_info(0)
    if info["kind"] != "cpu":
        pytest.skip(
            f"{info['name']} is a GPU: read-only host memory is copied, and no other is such"
        )
    pages = bridge.empty(1024, "float32", alignment=4096)
    source = np.from_dlpack(pages)
    source[:] = 1
    source.flags.writeable = False
    return source, bridge.to_device(source, "vulkan:0", copy=False)


def test_a_read_only_tensor_is_not_written(vulkan, scale_spirv):
    """It may be another library's memory in place: a jax array, a mapped file."""
    source, t = readonly_tensor(vulkan)
    assert t.readonly
    kernel = vulkan.kernel(scale_spirv, buffers=1, push_nbytes=12)
    for argument in (t, t.to_native()):
        with pytest.raises(ExchangeError, match=r"tensor 0 is read-only.* binding 0.*`readonly`"):
            kernel(argument, groups=16, push=struct.pack("=IIf", 1024, 1, 2.0))
    bridge.synchronize("vulkan:0")
    assert (source == 1).all()


def test_a_read_only_tensor_is_read(vulkan):
    """Where the module marks the binding, as the strided copy's first."""
    _, t = readonly_tensor(vulkan)
    out = bridge.to_device(np.zeros(1024, np.float32), "vulkan:0", copy=True)
    kernel = vulkan.kernel(COPY.read_bytes(), buffers=2, push_nbytes=68)
    push = struct.pack("=17I", 4, 0, 0, 1024, 1024, *[1] * 4, *[0] * 8)
    kernel(t, out, groups=16, push=push)
    assert (bridge.to_device(out, "cpu", like="numpy") == 1).all()
    with pytest.raises(ExchangeError, match="tensor 1 is read-only"):
        kernel(out, t, groups=16, push=push)
