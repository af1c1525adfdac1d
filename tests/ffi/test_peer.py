"""One process that uses tvm_ffi and dlbridge.ffi, in either order of import.

And what the compiled binding gets wrong (the notes' sections 2.4 to 2.7), shown
right here, mostly beside it.
"""

from __future__ import annotations

import textwrap

import pytest
from peers import peer

BOTH = """
import sys
sys.modules["torch"] = None  # tvm_ffi would import it first; not needed, and slow
{imports}
from dlbridge.core._cdefs import ffi as cffi
path = tvm_ffi.LIB._name
assert ffi.library_path == path, (ffi.library_path, path)
testing_library = cffi.dlopen(path.replace("libtvm_ffi.", "libtvm_ffi_testing."), cffi.RTLD_NOW)
"""
ORDERS = {
    "tvm_ffi first": BOTH.format(imports="import tvm_ffi\nfrom dlbridge import ffi"),
    "dlbridge first": BOTH.format(imports="from dlbridge import ffi\nffi.version\nimport tvm_ffi"),
}


@pytest.mark.parametrize("order", ORDERS)
def test_together(run_script, order):
    peer("tvm_ffi")
    code, output = run_script(
        """
        # Functions of one, called by the other.
        ffi.register_global_func("both.ours", lambda x: x + 1)
        tvm_ffi.register_global_func("both.theirs", lambda x: x * 2)
        assert tvm_ffi.get_global_func("both.ours")(41) == 42
        assert ffi.get_global_func("both.theirs")(21) == 42
        assert "both.theirs" in ffi.list_global_func_names()
        ffi.remove_global_func("both.theirs")
        assert tvm_ffi.get_global_func("both.theirs", allow_missing=True) is None

        # Objects pass through both, and Python objects stay themselves.
        class Thing: pass
        thing = Thing()
        theirs = tvm_ffi.get_global_func("testing.echo")
        ours = ffi.get_global_func("testing.echo")
        assert ours(thing) is thing and theirs(thing) is thing
        ffi.register_global_func("both.same", lambda x: x)
        assert tvm_ffi.get_global_func("both.same")(thing) is thing
        array = tvm_ffi.convert([1, 2, 3])
        through = tvm_ffi.get_global_func("both.same")(array)
        assert through.same_as(array)
        function = ours(tvm_ffi.convert(lambda x: x + 5))
        assert function(1) == 6
        assert ours(theirs) is ours
        import numpy
        tensor = tvm_ffi.from_dlpack(numpy.arange(3.0))
        assert ours(tensor).tolist() == [0, 1, 2]
        assert theirs(ours(tensor)).shape == (3,)
        mine = ffi.convert_func(lambda x: x + 1)
        assert theirs(mine)(1) == 2
        assert ours(theirs(mine)) is mine
        error = ffi.Error("ValueError", "an object of ours")
        assert type(theirs(error)).__module__.startswith("tvm_ffi")
        assert theirs(error).message == "an object of ours"
        assert ours(theirs(error)) is error

        # Errors cross both ways, ours with everything.
        class Mine(Exception): pass
        def fail():
            raise Mine("mine")
        ffi.register_global_func("both.fail", fail)
        try:
            ffi.get_global_func("testing.apply")(tvm_ffi.get_global_func("both.fail"))
        except Mine as exc:
            assert exc.args == ("mine",)
        else:
            raise AssertionError
        try:
            tvm_ffi.get_global_func("both.fail")()
        except RuntimeError as exc:
            assert "mine" in str(exc)
        else:
            raise AssertionError
        def theirs_fails():
            raise KeyError("theirs")
        try:
            ours(tvm_ffi.convert(theirs_fails))()
        except KeyError as exc:
            assert exc.args == ("'theirs'",) or exc.args == ("theirs",)
        else:
            raise AssertionError

        # Streams are one environment.
        with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda:0"), 0x55):
            assert ffi.get_raw_stream("cuda:0") == 0x55
        with ffi.use_raw_stream("cuda:0", 0x66):
            assert tvm_ffi.get_raw_stream(tvm_ffi.device("cuda:0")) == 0x66
        print("done")
        """,
        prelude=ORDERS[order],
    )
    assert (code, output) == (0, "done\n")


@pytest.mark.parametrize("order", ORDERS)
def test_ctrl_c_together(run_script, order):  # 4.6: same pointers, so the order is no matter
    peer("tvm_ffi")
    code, output = run_script(
        """
        import os, signal, threading
        for get in (tvm_ffi.get_global_func, ffi.get_global_func):
            try:
                threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()  # no verdict
                get("testing.run_check_signal")(600)
            except KeyboardInterrupt:
                print("interrupted")
        """,
        prelude=ORDERS[order],
    )
    assert (code, output) == (0, "interrupted\ninterrupted\n")


@pytest.mark.parametrize("order", ORDERS)
def test_race_together(run_script, order):
    peer("tvm_ffi")
    code, output = run_script(
        """
        import threading, time
        stop = time.monotonic() + 3
        problems = []
        def work(register, get, mine):
            i = 0
            while time.monotonic() < stop:
                i += 1
                register(f"race.{mine}.{i % 100}", lambda x: x + 1, True)
                if get(f"race.{mine}.{i % 100}")(1) != 2:
                    problems.append(mine)
                other = get(f"race.{1 - mine}.{i % 100}", allow_missing=True)
                if other is not None and other(1) != 2:
                    problems.append(mine)
        def register_ours(name, f, override):
            ffi.register_global_func(name, f, override=override)
        threads = [
            threading.Thread(target=work, args=(register_ours, ffi.get_global_func, 0)),
            threading.Thread(
                target=work, args=(tvm_ffi.register_global_func, tvm_ffi.get_global_func, 1)
            ),
        ]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        print(problems[:3])
        """,
        prelude=ORDERS[order],
    )
    assert (code, output) == (0, "[]\n")


# --- 2.4 Streams ---------------------------------------------------------------------------


# --- 2.6 Errors --------------------------------------------------------------------------------


# --- 2.7 Tensor.__dlpack__ -------------------------------------------------------------------------


@pytest.mark.parametrize("take", ["ffi.convert", "ffi.structural_hash"])
def test_a_moved_container_of_tvm_ffi_is_refused(run_script, take):
    peer("tvm_ffi")
    code, output = run_script(
        f"""
        array = tvm_ffi.Array([1, 2])
        tvm_ffi.get_global_func("ffi.Array")(array._move())
        try:
            {take}(array)
        except ValueError as error:
            print(error)
        """,
        prelude=textwrap.dedent(ORDERS["tvm_ffi first"]),
    )
    assert (code, output.strip()) == (0, "the Array was moved into a call and is empty now")
