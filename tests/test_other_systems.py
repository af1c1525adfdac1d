"""What Windows or macOS lack has a branch, or a message of ours, wherever dlbridge uses it.

Nothing of dlbridge has run there. So this reads the source: each use of a name, a module or a path
that another system lacks is in the table below, with the line that decides before it is reached.
"""

from __future__ import annotations

import ast
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted(
    path
    for folder in (ROOT / "dlbridge", *ROOT.glob("backends/*/dlbridge_*"))
    for path in folder.rglob("*.py")
)

# Of each module the names that Windows or macOS lack. `mypy --platform win32` and `darwin` found
# no other one (2026-11-28); they do not know a branch that stands in another function.
LACKED = {
    "os": r"fork|forkpty|register_at_fork|memfd_create|MFD_\w+|posix_\w+|sendfile|p?(read|write)v|"
    r"pread|pwrite|wait[34]?|waitid|W[A-Z]{4,}|sched_\w+|sysconf\w*|confstr|f?pathconf|[fl]?chown|"
    r"fchmod|(get|set)(e?[ug]id|res[ug]id|groups|pgid|pgrp|sid)|killpg|nice|mkfifo|mknod|openpty|"
    r"f?statvfs|getloadavg|uname|eventfd\w*|EFD_\w+|splice|copy_file_range|pidfd_open|pipe2|"
    r"[gs]et_blocking|getrandom|O_(CLOEXEC|ACCMODE|NONBLOCK|DIRECTORY|NOFOLLOW|TMPFILE|PATH|D?SYNC)|"
    r"RTLD_\w+|fdatasync|sync|ttyname|ctermid|[gsl]etxattr|unshare|setns",
    "socket": r"AF_UNIX|AF_NETLINK|(send|recv)_fds|SCM_\w+|CMSG_\w+|SO_PEERCRED",
    "signal": r"pthread_\w+|alarm|pause|[gs]etitimer|ITIMER_\w+|sig(wait\w*|timedwait|pending)|"
    r"siginterrupt|SIG_(UN)?BLOCK|SIG_SETMASK|"
    r"SIG(ALRM|BUS|CHLD|CONT|HUP|IO|KILL|PIPE|PROF|QUIT|STOP|TRAP|TSTP|URG|USR[12]|XCPU|XFSZ)",
    "mmap": r"PROT_\w+|MAP_\w+|MADV_\w+",
    "select": r"e?poll|kqueue|kevent|devpoll",
    "reduction": r"DupFd|send_handle|recv_handle",
}
MODULES = {"fcntl", "resource", "termios", "tty", "pty", "pwd", "grp", "posix", "syslog", "curses"}
METHODS = {"sendmsg", "recvmsg", "recvmsg_into", "madvise"}
PATHS = re.compile(r"/(proc|dev|sys|etc|usr|opt|run|var|tmp)/")

FORK = 'hasattr(os, "fork")'
POSIX = 'if os.name != "posix":'

# File -> what it uses -> the line that decides; with "FILE: " where that is in another one.
BRANCHES = {
    "backends/opencl/dlbridge_opencl/devices.py": {
        "/etc/OpenCL/vendors": "if not Path(where).exists"
    },
    "backends/rocm/dlbridge_rocm/library.py": {"/proc/self/maps": "if not _MAPS.exists():"},
    "backends/vulkan/dlbridge_vulkan/library.py": {
        "/opt/homebrew/lib /usr/local/lib": 'if platform == "darwin":',
        "ctypes.CDLL(None)": "in_child(_skip_exit_functions)",  # in a child of fork() only
    },
    "dlbridge/_imports_at_fork.py": {"os.register_at_fork": 'if hasattr(os, "register_at_fork"):'},
    "dlbridge/conformance/cases.py": {"ctypes.CDLL(None)": 'if sys.platform == "win32":'},
    "dlbridge/conformance/producer_cases.py": {
        "/proc/self/statm os.sysconf": "this system does not tell the size of a process",
        # By the names that platform.machine() has on Linux; Windows says AMD64, macOS arm64.
        "ctypes.CDLL(None) mmap.PROT_EXEC mmap.PROT_READ mmap.PROT_WRITE mmap.mmap(flags,prot)": (
            "code = _CODE.get(platform.machine())"
        ),
        "os.fork": f'offered({FORK}, "this system has no fork")',
    },
    "dlbridge/conformance/worker.py": {
        "os.WEXITSTATUS os.WIFSIGNALED os.WTERMSIG os.fork os.wait4 resource signal.SIGALRM "
        "signal.SIGKILL signal.SIGXCPU signal.alarm /proc/": f"_in_child if {FORK} else run"
    },
    "dlbridge/core/plugins/contract.py": {"ctypes.CDLL(None)": 'if sys.platform == "win32":'},
    "dlbridge/core/plugins/cpu.py": {
        "/proc/cpuinfo": "except OSError:\n        lines = []",
        "os.sched_getaffinity": 'if hasattr(os, "sched_getaffinity"):',
        "os.sysconf": 'if hasattr(os, "sysconf"):',
    },
    "dlbridge/diagnosis/files.py": {
        "/dev/dri/renderD* /dev/kfd /dev/nvidia[0-9]*": 'sorted(Path("/").glob(',
        "/etc/OpenCL/vendors": 'sorted(folder.glob("*.icd"))',
        "/etc/vulkan/icd.d /usr/local/share/vulkan/icd.d /usr/share/vulkan/icd.d": ".glob(",
    },
    "dlbridge/ffi/_lib.py": {"ctypes.CDLL(None)": 'or sys.platform == "win32":'},
    "dlbridge/files/source.py": {"os.preadv": '_has_preadv = hasattr(os, "preadv")'},
    "dlbridge/kit/backend.py": {
        "/proc/self/mem os.O_CLOEXEC os.pread": "except (OSError, AttributeError):  # not Linux"
    },
    "dlbridge/kit/resources.py": {"os.register_at_fork": 'hasattr(os, "register_at_fork")'},
    "dlbridge/kit/staging.py": {"ctypes.CDLL(None) madvise": 'if sys.platform == "linux":'},
    "dlbridge/processes/blocks.py": {
        "/proc/meminfo": "except (OSError, KeyError, ValueError):",
        "fcntl os.MFD_ALLOW_SEALING os.MFD_CLOEXEC os.fchmod os.memfd_create": (
            'if not hasattr(os, "memfd_create")'
        ),
        "os.posix_fallocate": 'if hasattr(os, "posix_fallocate"):',
        # A file is there only where `make_file`, or `from_fd`, has made or taken one.
        "mmap.MAP_SHARED mmap.PROT_READ mmap.PROT_WRITE mmap.mmap(flags,prot)": POSIX,
    },
    "dlbridge/processes/descriptors.py": {
        "fcntl os.O_ACCMODE": POSIX,
        "/proc/self/fd/ os.O_CLOEXEC": 'if layout.readonly and sys.platform == "linux":',
    },
    "dlbridge/processes/shared_tensors.py": {
        # Of a file's descriptor; Windows has no such files.
        "multiprocessing.reduction.DupFd": f"dlbridge/processes/blocks.py: {POSIX}",
    },
    "dlbridge/testing/backend_base.py": {"/proc/self/fd": "if folder.exists() else 0"},
    "dlbridge/testing/backend_contract.py": {
        "/proc/self/fd": "if folder.exists() else ()",
        "/proc/self/maps": "if maps.exists():",
    },
    "dlbridge/testing/backend_host.py": {
        "mmap.PROT_READ mmap.mmap(flags,prot)": 'skipif(sys.platform == "win32"'
    },
    "dlbridge/testing/backend_leaks.py": {
        "/proc/self/statm ctypes.CDLL(None)": "if statm.exists():",
        "/proc/self/task": "if folder.exists() else threading.active_count()",
        "resource": 'if sys.platform == "win32":',
    },
    "dlbridge/testing/backend_process.py": {
        "os.fork signal.alarm": f"skipif(not {FORK}",
        "signal.ITIMER_REAL signal.SIGALRM signal.setitimer": (
            'skipif(not hasattr(signal, "setitimer")'
        ),
    },
    "dlbridge/testing/backend_side_effects.py": {
        "/proc/self/environ": "if file.exists() else",
        "os.sched_getaffinity": 'if hasattr(os, "sched_getaffinity"):',
        "resource": "except ImportError:  # Windows",
        "signal.SIG_BLOCK signal.pthread_sigmask": 'if hasattr(signal, "pthread_sigmask"):',
        "signal.ITIMER_REAL signal.SIGALRM signal.setitimer": (
            'skipif(not hasattr(signal, "setitimer")'
        ),
    },
    "dlbridge/testing/backend_threads.py": {
        "signal.ITIMER_REAL signal.SIGALRM signal.setitimer": 'if hasattr(signal, "setitimer"):'
    },
}


def uses(source: str) -> set[str]:
    """What *source* uses that Windows or macOS lack; in the scripts in its strings, too."""
    return set(_uses(ast.parse(source)))


def _uses(tree: ast.AST) -> Iterator[str]:
    names = {name: name for name in LACKED}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            home = getattr(node, "module", None) or ""
            names |= {each.asname: each.name for each in node.names if each.asname and not home}
            found = [home, *(f"{home}.{each.name}".lstrip(".") for each in node.names)]
            yield from (name for name in found if name in MODULES or _is_lacked(*_parts(name)))
        elif isinstance(node, ast.Attribute):
            of = getattr(node.value, "id", getattr(node.value, "attr", ""))
            of = names.get(of, of)
            if _is_lacked(of, node.attr) or node.attr in METHODS:
                yield node.attr if node.attr in METHODS else f"{of}.{node.attr}"
        elif isinstance(node, ast.Call):
            yield from _calls(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if PATHS.match(node.value):
                yield node.value
            elif "\n" in node.value:
                with suppress(SyntaxError):  # a text
                    yield from _uses(ast.parse(node.value))


def _parts(name: str) -> tuple[str, str]:
    of, _, last = name.rpartition(".")
    return of.rpartition(".")[2], last


def _is_lacked(of: str, name: str) -> bool:
    return re.fullmatch(LACKED.get(of, "(?!)"), name) is not None


def _calls(node: ast.Call) -> Iterator[str]:
    function = ast.unparse(node.func)
    first = ast.unparse(node.args[0]) if node.args else ""
    if function.endswith(("CDLL", "PyDLL", "dlopen")) and first == "None":
        yield f"{function}(None)"  # a TypeError on Windows
    if function == "mmap.mmap" and {each.arg for each in node.keywords} & {"flags", "prot"}:
        yield "mmap.mmap(flags,prot)"
    if function.endswith(("get_context", "set_start_method")) and first == "'fork'":
        yield f"{function}({first})"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_each_use_has_a_branch(path):
    name, source = path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")
    branches = BRANCHES.get(name, {})
    known = {each for group in branches for each in group.split()}
    assert uses(source) == known, "write the branch, or a message, and put it into BRANCHES"
    for line in branches.values():
        other, _, text = line.rpartition(".py: ")
        home = (ROOT / f"{other}.py").read_text(encoding="utf-8") if other else source
        assert text in home, f"the branch has gone: {line}"


def test_the_table_names_files_that_are_there():
    assert {ROOT / name for name in BRANCHES} <= set(SOURCES)


@pytest.mark.parametrize(
    ("source", "use"),
    [
        ("os.fork()", "os.fork"),
        ("import os as _os\n_os.memfd_create('x')", "os.memfd_create"),
        ("from os import pread", "os.pread"),
        ("import fcntl", "fcntl"),
        ("def f():\n    from fcntl import ioctl", "fcntl"),
        ("socket.socket(socket.AF_UNIX)", "socket.AF_UNIX"),
        ("signal.pthread_kill(1, 2)", "signal.pthread_kill"),
        ("mmap.mmap(-1, 8, prot=1)", "mmap.mmap(flags,prot)"),
        ("ctypes.CDLL(None).read", "ctypes.CDLL(None)"),
        ("multiprocessing.get_context('fork')", "multiprocessing.get_context('fork')"),
        ("open(f'/proc/{pid}/stat')", "/proc/"),
        ("SCRIPT = 'import os\\nos.fork()'", "os.fork"),
    ],
)
def test_each_kind_of_use_is_seen(source, use):
    assert uses(source) == {use}


@pytest.mark.parametrize(
    "source", ["os.open(name, os.O_RDWR)", "os.getpid()", "ctypes.pythonapi", "'a/proc/b'"]
)
def test_what_each_system_has_is_no_use(source):
    assert uses(source) == set()
