"""What runs inside a worker: takes calls from standard input until that ends.

    python -P -m harness.worker contenders.zmq:Puller

The class is made without arguments and has, of these, the methods that its suite calls:

    start(options)          makes everything ready; answers facts, with at least {"version": text}
    prepare(work, turn)     before the timed part: clears, removes what older turns left
    run(work, turn)         the timed part; answers {"seconds": s, ...}, timed by itself
    settle(work)            waits until nothing of the run goes on in the background
    check(work, turn)       raises when the bytes are not right (where the harness cannot see them)
    close()                 ends what it started

Standard library only.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
import traceback

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    """Serves until the other side closes the pipe."""
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what libraries print must not look like an answer
    stay_in_the_tree()
    module, _, name = sys.argv[1].partition(":")
    answer, worker = attempt(lambda: getattr(importlib.import_module(module), name)())
    failed = None if worker is not None else answer
    for line in sys.stdin.buffer:
        request = json.loads(line)
        if failed is None:
            answer, _ = attempt(lambda asked=request: call(worker, **asked))
        out.write(json.dumps(failed or answer).encode() + b"\n")
    if worker is not None and hasattr(worker, "close"):
        attempt(worker.close)
    sys.stderr.flush()
    os._exit(0)  # some libraries hang in their own ends


OPTIONAL = ("prepare", "settle", "check")


def call(worker, **asked):
    """One method by name; those that a worker may leave out do nothing then."""
    name = asked["call"]
    if name in OPTIONAL and not hasattr(worker, name):
        return None
    return getattr(worker, name)(**asked["with"])


def attempt(work):
    """(what to answer, what came of it); an error of any kind is an answer too."""
    try:
        found = work()
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"[:500]}, None
    return {"answer": found if is_plain(found) else None}, found


def is_plain(value: object) -> bool:
    """Whether JSON can carry it."""
    return value is None or isinstance(value, bool | int | float | str | list | tuple | dict)


def stay_in_the_tree() -> None:
    """Ends with its parent, and stays the parent of servers that detach themselves: what they use
    is counted, and nothing of them is left behind."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


if __name__ == "__main__":
    main()
