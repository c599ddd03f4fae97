"""torch.distributed with gloo: `isend` and `irecv` of all tensors at once, over loopback TCP."""

from __future__ import annotations

import os
import warnings

import torch
import torch.distributed as distributed

from contenders.ends import Ends, free_port, start_other, timed

warnings.filterwarnings("ignore", "The given buffer is not writable")


def tensors_of(views: list[memoryview]) -> list[torch.Tensor]:
    """The views as tensors of bytes; nothing is copied."""
    return [torch.frombuffer(view, dtype=torch.uint8) for view in views]


def join(port: int, rank: int) -> None:
    """Becomes one of two ranks on the loopback interface."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2
    )


class Sender:
    """Rank 0."""

    def start(self, options):
        self.ends = Ends(options)
        self.tensors = {work: tensors_of(self.ends.source_views(work)) for work in self.ends.works}
        return {}

    def join(self, port):
        join(port, 0)

    def send(self, work):
        for pending in [distributed.isend(tensor, 1) for tensor in self.tensors[work]]:
            pending.wait()


class Receiver:
    """Rank 1."""

    def start(self, options):
        self.ends = Ends(options)
        self.tensors = {work: tensors_of(self.ends.target_views(work)) for work in self.ends.works}
        self.sender, _ = start_other("contenders.gloo:Sender", options)
        port = free_port()
        self.sender.post("join", port=port)
        join(port, 1)
        self.sender.wait()
        return {"version": torch.__version__}

    def run(self, work, turn):
        return timed(lambda: self.receive(work))

    def receive(self, work):
        self.sender.post("send", work=work)
        for pending in [distributed.irecv(tensor, 0) for tensor in self.tensors[work]]:
            pending.wait()
        self.sender.wait()

    def close(self):
        self.sender.close()
