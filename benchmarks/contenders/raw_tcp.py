"""The bare loop that transports are measured against: `sendfile` out of a memfd, `recvmsg_into`
the target, over loopback TCP. No library, no protocol, no checksum."""

from __future__ import annotations

import os
import socket
import threading

from contenders.ends import Ends, start_other, timed

VIEWS_MAX = 64
SEND_BYTES_MAX = 1 << 30


def tune(connected: socket.socket, congestion: str) -> None:
    """TCP_NODELAY, and the congestion control that was asked for."""
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if congestion:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode())


def share_out(places: list[tuple[int, int]], streams: int) -> list[list[tuple[int, int]]]:
    """Neighbouring pieces for each stream, about the same number of bytes each."""
    total = sum(size for _, size in places)
    cuts = [total * n // streams for n in range(1, streams + 1)]
    shares: list[list[tuple[int, int]]] = [[] for _ in range(streams)]
    for at, size in places:
        end = at + size
        for number, stop in enumerate(cuts):
            start = cuts[number - 1] if number else 0
            low, high = max(at, start), min(end, stop)
            if low < high:
                shares[number].append((low, high - low))
    return shares


def in_threads(works) -> None:
    """Runs them at once; one alone runs here."""
    threads = [threading.Thread(target=work) for work in works[1:]]
    for thread in threads:
        thread.start()
    works[0]()
    for thread in threads:
        thread.join()


class Sender:
    """Sends each stream its share when it is told to."""

    def start(self, options):
        self.ends = Ends(options)
        self.streams = options["streams"]
        self.listening = socket.create_server(("127.0.0.1", 0))
        return {"port": self.listening.getsockname()[1]}

    def accept(self):
        self.connected = [self.listening.accept()[0] for _ in range(self.streams)]
        for each in self.connected:
            tune(each, self.ends.options["congestion"])

    def send(self, work):
        shares = share_out(self.ends.places(work), self.streams)
        pairs = zip(self.connected, shares, strict=True)
        in_threads([lambda c=c, s=s: self.send_share(c, s) for c, s in pairs])

    def send_share(self, connected, share):
        at, end = share[0][0], share[-1][0] + share[-1][1]
        while at < end:
            at += os.sendfile(
                connected.fileno(), self.ends.source_fd, at, min(end - at, SEND_BYTES_MAX)
            )


class Receiver:
    """Reads straight into the target."""

    def start(self, options):
        self.ends = Ends(options)
        self.streams = options["streams"]
        self.sender, facts = start_other("contenders.raw_tcp:Sender", options)
        address = ("127.0.0.1", facts["port"])
        self.connected = [socket.create_connection(address) for _ in range(self.streams)]
        for each in self.connected:
            tune(each, options["congestion"])
        self.sender.call("accept")
        return {"version": ""}

    def run(self, work, turn):
        return timed(lambda: self.receive(work))

    def receive(self, work):
        self.sender.post("send", work=work)
        shares = share_out(self.ends.places(work), self.streams)
        pairs = zip(self.connected, shares, strict=True)
        in_threads([lambda c=c, s=s: self.receive_share(c, s) for c, s in pairs])
        self.sender.wait()

    def receive_share(self, connected, share):
        fill_views(connected, [self.ends.target[at : at + size] for at, size in share])

    def close(self):
        self.sender.close()


def fill_views(connected: socket.socket, views: list[memoryview]) -> None:
    """Receives until all views are full, many of them with one call."""
    first = 0
    while first < len(views):
        got = connected.recvmsg_into(views[first : first + VIEWS_MAX])[0]
        if not got:
            raise EOFError("the sender closed the connection")
        while got and first < len(views):
            size = len(views[first])
            if got >= size:
                got -= size
                first += 1
            else:
                views[first] = views[first][got:]
                got = 0
