"""The ways to pickle; run as a program, it loads pickles of standard input and dumps them again.

It does not import dlbridge: the pickles do.
"""

from __future__ import annotations

import io
import pickle
import sys
import traceback
from typing import Any

import cloudpickle
import joblib


def by_joblib(value: Any) -> bytes:
    """The bytes of a file that joblib writes."""
    file = io.BytesIO()
    joblib.dump(value, file)
    return file.getvalue()


WAYS = {
    "pickle": (pickle.dumps, pickle.loads),
    "cloudpickle": (cloudpickle.dumps, cloudpickle.loads),
    "joblib": (by_joblib, lambda data: joblib.load(io.BytesIO(data))),
}


def main() -> None:
    """For (way, name) -> pickle: what the object gives once more, or a traceback."""
    answers: dict[tuple[str, str], bytes | str] = {}
    for (way, name), data in pickle.load(sys.stdin.buffer).items():
        dump, load = WAYS[way]
        try:
            answers[way, name] = dump(load(data))
        except BaseException:
            answers[way, name] = traceback.format_exc()
    pickle.dump(answers, sys.stdout.buffer)


if __name__ == "__main__":
    main()
