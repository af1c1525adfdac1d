"""Opens damaged files until the time is up: ``python fuzz_files.py SECONDS FOLDER``.

A file of each format is damaged at random and loaded. It is refused by one of
dlbridge's errors, or every tensor in it can be read to its last byte. The file
is on the disk before it is tried, for the case that the process dies of it.
"""

from __future__ import annotations

import faulthandler
import random
import struct
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

import numpy as np

import dlbridge as bridge
from tests.files.making import GGUF_F32, GGUF_Q4_0, gguf_bytes, npy_bytes

WORDS = [b"[", b"]", b"{", b"}", b'"', b",", b"-1", b"0", b"99999999999999999999", b"1e3", b"null"]
WORDS += [b"true", b"F64", b"F4", b"<f8", b"|V2", b"|O", b"'shape'", b"True", b"shape"]
WORDS += [b"\xff", b"\0"]
NUMBERS = [0, 1, 2, 3, 7, 8, 9, 31, 32, 33, 255, 256, 4096, 2**31, 2**32 - 1]
NUMBERS += [2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 1]

ROUNDS = 100
"""At least so many files of each kind, however slow the machine is."""


def seeds(folder: Path) -> dict[str, bytes]:
    """A good file of each kind."""
    arrays = {
        "a": np.arange(40, dtype="f4").reshape(5, 8),
        "b": np.arange(7, dtype="u1"),
        "c": np.array(1.0),
    }
    path = folder / "seed.safetensors"
    bridge.save(path, arrays, {"k": "v"})
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    text = raw[8 : 8 + length].rstrip()
    made = {"safetensors": struct.pack("<Q", len(text)) + text + raw[8 + length :]}
    made["npy"] = npy_bytes(np.asfortranarray(arrays["a"]))
    for name, save in (("npz", np.savez), ("npz compressed", np.savez_compressed)):
        save(folder / "seed.npz", **arrays)
        made[name] = (folder / "seed.npz").read_bytes()
    bridge.save(folder / "seed.npz", {"a": arrays["a"], "h": bridge.ones(7, "bfloat16")})
    made["npz of save"] = (folder / "seed.npz").read_bytes()
    pairs = struct.pack("<Q17sII", 17, b"general.alignment", 4, 32)
    pairs += struct.pack("<Q1sIIQQ2sQ2s", 1, b"t", 9, 8, 2, 2, b"ab", 2, b"cd")
    tensors = [("x", (4, 2), GGUF_F32, 0), ("y", (64,), GGUF_Q4_0, 32), ("z", (3,), 24, 96)]
    made["gguf"] = gguf_bytes(tensors, bytes(128), pairs=pairs, count=2)
    return made


def damaged(raw: bytes, rng: random.Random) -> bytes:
    """*raw* with one to four changes, most of them in the first bytes or the last."""
    changed = bytearray(raw)
    for _ in range(rng.choice([1, 1, 1, 2, 3, 4])):
        end = len(changed)
        reach = rng.choice([24, 200, end])
        at = rng.randrange(max(1, min(reach, end)))
        if rng.random() < 0.2:
            at = max(0, end - 1 - at)
        kind = rng.randrange(7)
        if kind == 0 and end:
            changed[at : at + 1] = bytes([rng.randrange(256)])
        elif kind == 1:
            changed[at : at + rng.randint(0, 3)] = rng.choice(WORDS)
        elif kind == 2:
            size = rng.choice([2, 4, 8])
            changed[at : at + size] = (rng.choice(NUMBERS) % 256**size).to_bytes(size, "little")
        elif kind == 3:
            del changed[at:]
        elif kind == 4:
            del changed[at : at + rng.randint(1, 20)]
        elif kind == 5:
            changed += bytes(rng.randint(1, 40))
        else:
            other = rng.randrange(max(1, end))
            changed[at:at] = changed[other : other + rng.randint(1, 60)]
    return bytes(changed)


def check(path: Path, error: bridge.Error) -> None:
    """An error names the file."""
    assert str(path) in str(error), error


def attempt(path: Path, kind: str, rng: random.Random) -> str:
    """Load all of the file; how that ended."""
    device = rng.choice(["cpu", "cpu", "ext_dev:0"])
    copy = rng.choice([None, True])
    dtype = rng.choice([None, None, "bfloat16"]) if kind.startswith("np") else None
    try:
        found = bridge.load(path, device, dtype=dtype, raw=rng.random() < 0.5, copy=copy)
        tensors = [found] if isinstance(found, bridge.Tensor) else found
        if isinstance(found, bridge.TensorFile):
            tensors = []
            for name in found:
                try:
                    tensors.append(found[name])
                except bridge.Error as exc:
                    check(path, exc)
        for tensor in tensors:
            assert len(tensor.tobytes()) == tensor.nbytes
    except bridge.FileError as exc:
        check(path, exc)
        return "refused"
    except bridge.DeviceMemoryError:  # compressed zeros can be many
        return "no memory"
    return "loaded"


def main() -> None:
    faulthandler.enable()
    warnings.simplefilter("ignore")  # numpy's, of headers that Python 2 might have written
    seconds, folder = float(sys.argv[1]), Path(sys.argv[2])
    rng = random.Random(sys.argv[3] if len(sys.argv) > 3 else 1)
    good = seeds(folder)
    outcomes: Counter[str] = Counter()
    end = time.monotonic() + seconds
    for kind, raw in good.items():
        suffix = kind.split()[0]
        path = folder / f"tried.{suffix}"
        path.write_bytes(raw)
        assert attempt(path, kind, rng) == "loaded" or "np" in kind, kind
    rounds = 0
    while time.monotonic() < end or rounds < ROUNDS:
        rounds += 1
        for kind, raw in good.items():
            path = folder / f"tried.{kind.split()[0]}"
            path.write_bytes(damaged(raw, rng))
            outcomes[f"{kind} {attempt(path, kind, rng)}"] += 1
    print(dict(outcomes))


if __name__ == "__main__":
    main()
