"""Workers for the tests of the harness; they run in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from contenders.ends import Ends, start_other, timed


class Copier:
    """Copies the source to the target, with a helper process that it burns the CPU of."""

    def start(self, options):
        self.ends = Ends(options)
        self.options = options
        print("this must not look like an answer")
        if options.get("fails") == "start":
            raise RuntimeError("it will not start")
        return {"version": "7"}

    def run(self, work, turn):
        if self.options.get("fails") == f"{work} {turn}":
            raise RuntimeError("it broke")
        answer = timed(lambda: self.copy(work))
        return {**answer, "p50_us": 5.0, "p99_us": 9.0, "own_mib": 3.0}

    def copy(self, work):
        size = self.ends.size(work)
        self.ends.target[:size] = self.ends.source[:size]
        if self.options.get("damages"):
            self.ends.target[size - 1] ^= 1

    def close(self):
        with open(self.options["folder"] + "/closed.log", "a") as file:
            file.write("closed\n")


class Burner:
    """Uses the CPU in a child that ends, in one that stays, and in itself."""

    def start(self, options):
        self.other, _ = start_other("bench_workers:Other", options)
        return {}

    def run(self, work, turn):
        code = "import time\nwhile time.process_time() < 0.1: pass"
        subprocess.run([sys.executable, "-c", code], check=True)
        burn(0.1)
        return {"seconds": 0.3, "bytes": 300, "pid": os.getpid()}

    def settle(self, work):
        self.other.call("burn")

    def close(self):
        self.other.close()


class Other:
    """The other side."""

    def start(self, options):
        return {}

    def burn(self):
        burn(0.1)


class Deserter:
    """Starts a process that outlives it."""

    def start(self, options):
        code = "import os, time\nif os.fork(): os._exit(0)\ntime.sleep(600)"
        subprocess.run([sys.executable, "-c", code], check=True)
        return {}


class Sleeper:
    """Never answers."""

    def start(self, options):
        return {}

    def run(self, work, turn):
        time.sleep(600)


def burn(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
