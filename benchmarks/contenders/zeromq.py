"""pyzmq PUSH and PULL over loopback TCP, sent without a copy. It cannot receive into memory that
exists, so each message is copied to its place."""

from __future__ import annotations

import zmq

from contenders.ends import Ends, start_other, timed


class Pusher:
    """Sends the tensors of a work, one message each."""

    def start(self, options):
        self.ends = Ends(options)
        self.socket = zmq.Context().socket(zmq.PUSH)
        return {"port": self.socket.bind_to_random_port("tcp://127.0.0.1")}

    def send(self, work):
        views = self.ends.source_views(work)
        for sent in [self.socket.send(view, copy=False, track=True) for view in views]:
            sent.wait()


class Puller:
    """Receives them."""

    def start(self, options):
        self.ends = Ends(options)
        self.pusher, facts = start_other("contenders.zeromq:Pusher", options)
        self.socket = zmq.Context().socket(zmq.PULL)
        self.socket.connect(f"tcp://127.0.0.1:{facts['port']}")
        return {"version": zmq.__version__}

    def run(self, work, turn):
        return timed(lambda: self.receive(work))

    def receive(self, work):
        self.pusher.post("send", work=work)
        for view in self.ends.target_views(work):
            view[:] = self.socket.recv(copy=False).buffer
        self.pusher.wait()

    def close(self):
        self.pusher.close()
