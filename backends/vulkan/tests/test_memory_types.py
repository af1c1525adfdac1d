"""The choice of memory types, on tables of real devices.

Sizes are rounded, and types that buffers cannot use are left out where nothing depends on them.
RTX, RADV and Adreno 650 are after reports: libplacebo#317 and iree#5268 (NVIDIA's heaps), Mesa's
radv_physical_device.c and memtest_vulkan#1 (both of RADV's), bionic-vulkan-wrapper#61 (Adreno
650); MoltenVK is after `initMemoryProperties` of its MVKDevice.mm, ANV with a shared cache after
`anv_physical_device_init_heaps` of Mesa. ANV without one, AMD's own driver and the other Adrenos
are made up from what is known of them, without a report at hand.
None of these devices has run the tests.
"""

from types import SimpleNamespace

import pytest
from dlbridge_vulkan.instance import MemoryType

LOCAL, VISIBLE, COHERENT, CACHED, LAZY, PROTECTED = 1, 2, 4, 8, 16, 32
HOST = VISIBLE | COHERENT
AMD_COHERENT, AMD_UNCACHED = 64, 128
MIB, GIB = 1 << 20, 1 << 30


def device(kind, heaps, types):
    """*heaps*: (bytes, device-local); *types*: (flags, heap)."""
    return SimpleNamespace(
        kind=kind,
        shares_memory=kind in ("integrated", "cpu"),
        memory=max(size for size, local in heaps if local),
        memory_types=tuple((flags, heap, heaps[heap][0]) for flags, heap in types),
    )


RTX = device(  # GeForce RTX 3070, window of 256 MiB
    "discrete",
    [(8 * GIB, True), (24 * GIB, False), (214 * MIB, True)],
    [(0, 1), (LOCAL, 0), (HOST, 1), (HOST | CACHED, 1), (LOCAL | HOST, 2)],
)
RTX_REBAR = device(  # the same, resizable BAR
    "discrete",
    [(8 * GIB, True), (24 * GIB, False)],
    [(0, 1), (LOCAL, 0), (HOST, 1), (HOST | CACHED, 1), (LOCAL | HOST, 0)],
)
RADV_DISCRETE = device(  # Radeon RX 6600, small BAR: its visible part is a heap of its own
    "discrete",
    [(7936 * MIB, True), (16 * GIB, False), (256 * MIB, True)],
    [
        (LOCAL, 0),
        (LOCAL, 0),
        (HOST, 1),
        (LOCAL | HOST, 2),
        (LOCAL | HOST, 2),
        (HOST | CACHED, 1),
        (HOST | CACHED, 1),
        (LOCAL | AMD_COHERENT | AMD_UNCACHED, 0),
        (LOCAL | HOST | AMD_COHERENT | AMD_UNCACHED, 2),
    ],
)
RADV_REBAR = device(  # the same, resizable BAR: all of it is visible, and one heap
    "discrete",
    [(16 * GIB, False), (8 * GIB, True)],
    [
        (LOCAL, 1),
        (LOCAL, 1),
        (HOST, 0),
        (LOCAL | HOST, 1),
        (LOCAL | HOST, 1),
        (HOST | CACHED, 0),
        (HOST | CACHED, 0),
    ],
)
RADV_APU = device(  # Ryzen 5700G: RADV shows 2/3 of the memory as local, 1/3 as the host's
    "integrated",
    [(5 * GIB, False), (10 * GIB, True)],
    [(LOCAL, 1), (HOST, 0), (LOCAL | HOST, 1), (HOST | CACHED, 0)],
)
APU_CARVE_OUT = device(  # AMD's own driver: a carve-out of 512 MiB, with a window of 256 MiB
    "integrated",
    [(256 * MIB, True), (7 * GIB, False), (256 * MIB, True)],
    [(LOCAL, 0), (HOST, 1), (LOCAL | HOST, 2), (HOST | CACHED, 1)],
)
ANV = device(  # Intel Xe graphics with a shared last-level cache
    "integrated",
    [(11 * GIB, True)],
    [(LOCAL, 0), (LOCAL | HOST | CACHED, 0)],
)
ANV_NO_LLC = device(  # Intel Atom, Meteor Lake: one type coherent, one cached
    "integrated",
    [(6 * GIB, True)],
    [(LOCAL | HOST, 0), (LOCAL | VISIBLE | CACHED, 0), (LOCAL | HOST | CACHED, 0)],
)
MOLTENVK = device(  # Apple M1: private, shared, managed, memoryless
    "integrated",
    [(16 * GIB, True)],
    [(LOCAL, 0), (LOCAL | HOST | CACHED, 0), (LOCAL | VISIBLE | CACHED, 0), (LOCAL | LAZY, 0)],
)
MOLTENVK_DISCRETE = device(  # a Mac with a Radeon: shared memory is a heap of its own
    "discrete",
    [(8 * GIB, True), (32 * GIB, False)],
    [(LOCAL, 0), (HOST | CACHED, 1), (LOCAL | VISIBLE | CACHED, 0)],
)
ADRENO_650 = device(  # Qualcomm's driver: also a heap that is protected
    "integrated",
    [(3565 * MIB, True), (256 * MIB, True)],
    [
        (LOCAL, 0),
        (LOCAL | VISIBLE | CACHED, 0),
        (LOCAL | HOST | CACHED, 0),
        (LOCAL, 0),
        (LOCAL | HOST, 0),
        (LOCAL | PROTECTED, 1),
    ],
)
ADRENO = device(  # Adreno 640, Qualcomm's driver
    "integrated",
    [(3 * GIB, True)],
    [
        (LOCAL, 0),
        (LOCAL | HOST, 0),
        (LOCAL | VISIBLE | CACHED, 0),
        (LOCAL | HOST | CACHED, 0),
        (LOCAL | LAZY, 0),
    ],
)
ADRENO_OLD = device(  # Adreno 530: nothing that is coherent and cached
    "integrated",
    [(2 * GIB, True)],
    [(LOCAL, 0), (LOCAL | HOST, 0), (LOCAL | VISIBLE | CACHED, 0)],
)
LAVAPIPE = device("cpu", [(15 * GIB, True)], [(LOCAL | HOST | CACHED, 0)])

ALL = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("physical", "order", "mapped", "cached"),
    [
        pytest.param(RTX, [1, 4, 3, 2, 0], False, False, id="the small window is not mapped"),
        pytest.param(RTX_REBAR, [4, 1, 3, 2, 0], True, False, id="written directly, read staged"),
        pytest.param(RADV_DISCRETE, [0, 1, 3, 4, 5, 6, 2], False, False, id="RADV discrete"),
        pytest.param(RADV_REBAR, [3, 4, 0, 1, 5, 6, 2], True, False, id="RADV, resizable BAR"),
        pytest.param(RADV_APU, [3, 2, 0, 1], True, True, id="RADV APU: a host view"),
        pytest.param(APU_CARVE_OUT, [3, 2, 0, 1], True, True, id="APU with a carve-out"),
        pytest.param(ANV, [1, 0], True, True, id="ANV"),
        pytest.param(ANV_NO_LLC, [2, 0, 1], True, True, id="ANV without LLC: coherent first"),
        pytest.param(MOLTENVK, [1, 0, 2], True, True, id="MoltenVK: nothing memoryless"),
        pytest.param(MOLTENVK_DISCRETE, [0, 2, 1], False, False, id="MoltenVK, discrete"),
        pytest.param(ADRENO_650, [2, 4, 0, 1, 3], True, True, id="Adreno 650: nothing protected"),
        pytest.param(ADRENO, [3, 1, 0, 2], True, True, id="Adreno"),
        pytest.param(ADRENO_OLD, [1, 0, 2], True, False, id="Adreno, uncached"),
        pytest.param(LAVAPIPE, [0], True, True, id="lavapipe"),
    ],
)
def test_the_types_for_tensors(physical, order, mapped, cached):
    """The best type first, and the others in the order in which they are tried when it is full."""
    kinds = MemoryType.for_tensors(physical, ALL, staged=False)
    assert [kind.index for kind in kinds] == order
    assert (kinds[0].mapped, kinds[0].cached) == (mapped, cached)


def test_the_types_that_the_buffer_allows():
    kinds = MemoryType.for_tensors(ADRENO, 0b00101, staged=False)
    assert [kind.index for kind in kinds] == [0, 2]
    assert not kinds[1].mapped  # cached, but not coherent: never mapped


def test_staged_maps_nothing():
    for physical in (RTX_REBAR, RADV_APU, ANV, LAVAPIPE):
        kinds = MemoryType.for_tensors(physical, ALL, staged=True)
        assert not any(kind.mapped or kind.cached for kind in kinds)


@pytest.mark.parametrize(
    ("physical", "index"),
    [
        (RTX, 3), (RTX_REBAR, 3), (RADV_DISCRETE, 5), (RADV_APU, 3), (ANV, 1), (ANV_NO_LLC, 2),
        (MOLTENVK, 1), (ADRENO, 3), (ADRENO_OLD, 1), (RADV_REBAR, 5), (MOLTENVK_DISCRETE, 1),
        (ADRENO_650, 2),
    ],
)  # fmt: skip
def test_the_type_for_staging(physical, index):
    """Cached where there is such, and outside of device memory where there is a choice."""
    assert MemoryType.for_staging(physical, ALL).index == index
