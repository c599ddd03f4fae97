"""Raw ends of the pull protocol, for tests that break its rules."""

import contextlib
import socket
import threading

from conformance.contents import MIB
from conformance.transport import PEER
from tensorcast.movers.transports.tcp import wire

SIZE = 6 * MIB + 10
HELLO = wire.pack_opening(wire.Hello(cluster="c1", node="n2", peer=PEER))


def read(connected, size):
    got = b""
    while len(got) < size and (piece := connected.recv(size - len(got))):
        got += piece
    return got


class FakeServer:
    """Accepts connections and plays a script on each, in threads."""

    def __init__(self, script):
        self._script = script
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.stop = threading.Event()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                connected, _ = self._listening.accept()
                connected.settimeout(10)
                thread = threading.Thread(target=self._play, args=(connected,))
                self._threads.append(thread)
                thread.start()

    def _play(self, connected):
        with connected, contextlib.suppress(OSError):
            self._script(connected, self.stop)

    def close(self):
        self.stop.set()
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for thread in self._threads:
            thread.join()


@contextlib.contextmanager
def playing(script):
    server = FakeServer(script)
    yield server
    server.close()
