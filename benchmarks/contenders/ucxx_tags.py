"""ucxx: tag send and receive of all tensors at once through its asyncio interface."""

from __future__ import annotations

import asyncio

import numpy
import ucxx

from contenders.ends import Ends, start_other, timed


def arrays_of(views: list[memoryview]) -> list[numpy.ndarray]:
    """The views as arrays; nothing is copied."""
    return [numpy.frombuffer(view, dtype=numpy.uint8) for view in views]


class Sender:
    """Listens, and sends to the one endpoint that connected."""

    def start(self, options):
        self.ends = Ends(options)
        self.arrays = {work: arrays_of(self.ends.source_views(work)) for work in self.ends.works}
        self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)
        return self.loop.run_until_complete(self.listen())

    async def listen(self):
        self.endpoint = self.loop.create_future()

        async def take(endpoint):
            self.endpoint.set_result(endpoint)
            await asyncio.Event().wait()  # the listener closes an endpoint when this returns

        self.listener = ucxx.create_listener(take)
        return {"port": self.listener.port}

    def accept(self):
        self.loop.run_until_complete(self.endpoint)

    def send(self, work):
        self.loop.run_until_complete(self.send_all(work))

    async def send_all(self, work):
        endpoint = self.endpoint.result()
        await asyncio.gather(*[endpoint.send(array) for array in self.arrays[work]])


class Receiver:
    """Connects, and receives into the target."""

    def start(self, options):
        self.ends = Ends(options)
        self.arrays = {work: arrays_of(self.ends.target_views(work)) for work in self.ends.works}
        self.sender, facts = start_other("contenders.ucxx_tags:Sender", options)
        self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)
        self.sender.post("accept")  # it makes progress only while its loop runs
        self.endpoint = self.loop.run_until_complete(
            ucxx.create_endpoint("127.0.0.1", facts["port"])
        )
        self.sender.wait()
        return {"version": ucxx.__version__}

    def run(self, work, turn):
        return timed(lambda: self.loop.run_until_complete(self.receive(work)))

    async def receive(self, work):
        self.sender.post("send", work=work)
        await asyncio.gather(*[self.endpoint.recv(array) for array in self.arrays[work]])
        self.sender.wait()

    def close(self):
        self.sender.close()
