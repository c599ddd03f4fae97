"""iperf3, one stream: what a network engineer would quote for this machine."""

from __future__ import annotations

import json
import os
import subprocess

from contenders.ends import find_program, free_port

SECONDS = 1
START_S_MAX = 10.0


class Iperf:
    """A server that stays, and a client for each run with the options of this contender."""

    def start(self, options):
        self.program = find_program("iperf3", options)
        self.arguments = options["arguments"]
        self.environ = dict(os.environ)
        self.environ["LD_LIBRARY_PATH"] = f"{options['cache']}/debian/usr/lib/x86_64-linux-gnu"
        self.port = str(free_port())
        command = [self.program, "-s", "-B", "127.0.0.1", "-p", self.port, "--forceflush"]
        self.server = subprocess.Popen(command, stdout=subprocess.PIPE, env=self.environ)
        while b"listening" not in self.server.stdout.readline():
            if self.server.poll() is not None:
                raise RuntimeError("iperf3 -s ended at once")
        version = subprocess.run(
            [self.program, "--version"], capture_output=True, text=True, env=self.environ
        )
        return {"version": version.stdout.split()[1]}

    def run(self, work, turn):
        """One second: it tells the bytes that arrived and how long that took."""
        command = [self.program, "-c", "127.0.0.1", "-p", self.port, "-J", "-t", str(SECONDS)]
        done = subprocess.run([*command, *self.arguments], capture_output=True, env=self.environ)
        found = json.loads(done.stdout)
        if "error" in found:
            raise RuntimeError(found["error"])
        arrived = found["end"]["sum_received"]
        return {"seconds": arrived["seconds"], "bytes": arrived["bytes"]}

    def close(self):
        self.server.terminate()
        self.server.wait()
