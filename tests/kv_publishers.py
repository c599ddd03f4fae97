"""A publisher of KV events as vLLM has it: ZMQ PUB and ROUTER, batches in msgpack, a buffer that
forgets. It can lose messages on their way, and start anew."""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path

import msgspec
import zmq
import zmq.asyncio

END = b"\xff" * 8


def stored(first: int, count: int, *, size: int = 4, parent: int | None = None, **fields) -> dict:
    """Blocks `first`, `first + 1`, ...: a block's number is its hash, and its tokens follow from
    it."""
    return {
        "type": "BlockStored",
        "block_hashes": list(range(first, first + count)),
        "parent_block_hash": parent,
        "token_ids": tokens(first, count, size),
        "block_size": size,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "group_idx": 0,
        **fields,
    }


def tokens(first: int, count: int, size: int = 4) -> list[int]:
    return [100 * number + place for number in range(first, first + count) for place in range(size)]


def removed(*hashes: int, **fields) -> dict:
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": "GPU", **fields}


CLEARED = {"type": "AllBlocksCleared"}


def batch(*events: dict, ts: float | None = None) -> bytes:
    return msgspec.msgpack.encode([time.time() if ts is None else ts, list(events), 0])


class Publisher:
    """Serves replays in a task (`serve`); `publish` sends a batch, or loses it."""

    def __init__(self, folder: Path, *, keeps: int = 1000) -> None:
        self.events = f"ipc://{folder}/events"
        self.replay = f"ipc://{folder}/replay"
        self.asked: list[int] = []
        self._context = zmq.asyncio.Context()
        self._publisher = self._bind()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.bind(self.replay)
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=keeps)
        self._next = 0

    async def publish(self, *events: dict, lost: bool = False, payload: bytes | None = None) -> int:
        """The number of the batch."""
        seq, self._next = self._next, self._next + 1
        body = batch(*events) if payload is None else payload
        self._kept.append((seq, body))
        if not lost:
            await self._publisher.send_multipart([b"", seq.to_bytes(8, "big"), body])
        return seq

    def _bind(self) -> zmq.asyncio.Socket:
        publisher = self._context.socket(zmq.PUB)
        publisher.bind(self.events)
        return publisher

    def restart(self) -> None:
        """Another life of the engine: it has published nothing yet."""
        self._kept.clear()
        self._next = 0
        self._publisher.close(linger=0)
        self._publisher = self._bind()

    async def serve(self) -> None:
        while True:
            client, _, start = await self._router.recv_multipart()
            self.asked.append(int.from_bytes(start, "big"))
            for seq, body in tuple(self._kept):
                if seq >= self.asked[-1]:
                    frames = [client, b"", b"", seq.to_bytes(8, "big"), body]
                    await self._router.send_multipart(frames)
            await self._router.send_multipart([client, b"", b"", END, b""])

    def close(self) -> None:
        self._context.destroy(linger=0)
