"""A client in one process for the tests of `tcctl bench`: it keeps what it is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

import torch

from cli_samples import node
from tensorcast.schema.api import BlockCount, NodeBlocks
from tensorcast.schema.errors import NotFound
from tensorcast.schema.ids import NodeId, Tier

MIB = 1 << 20


@dataclass
class Kept:
    """An artifact of the fake, and the handle of it."""

    id: str
    labels: dict[str, str]
    tensors: dict[str, torch.Tensor]
    state: str = "sealed"
    replicas: tuple[object, ...] = ()

    def wait(self, timeout: float | None = None) -> Kept:
        return self


@dataclass
class TrialClient:
    """Two nodes, n1 (here) and n2. `damage` is done to the tensors that a get answers; `breaks`
    names calls that raise KeyboardInterrupt, as Ctrl-C does."""

    room: int = 64 * MIB
    damage: bool = False
    breaks: tuple[str, ...] = ()
    kept: dict[str, Kept] = field(default_factory=dict)
    blocks: dict[bytes, bytes] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    was_there: int = 0

    def __post_init__(self) -> None:
        self.context = SimpleNamespace(default_node="n1")
        self.api = self

    def __enter__(self) -> TrialClient:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def note(self, name: str) -> None:
        self.calls.append(name)
        if name in self.breaks:
            raise KeyboardInterrupt

    # ---- artifacts -----------------------------------------------------------------------------

    def put(self, tensors: dict[str, torch.Tensor], *, kind: str, labels: dict[str, str]) -> Kept:
        self.was_there += 1
        copies = {name: tensor.clone() for name, tensor in tensors.items()}
        kept = self.kept[f"a{self.was_there}"] = Kept(f"a{self.was_there}", labels, copies)
        self.note("put")
        return kept

    def get(self, what: str) -> dict[str, torch.Tensor]:
        self.note("get")
        found = {name: tensor.clone() for name, tensor in self.kept[what].tensors.items()}
        if self.damage:
            next(iter(found.values()))[7] ^= 1
        return found

    def empty(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {name: torch.empty_like(tensor) for name, tensor in tensors.items()}

    def replicate(self, what: str, *, to: Sequence[str]) -> Kept:
        self.note(f"replicate to {','.join(to)}")
        return self.kept[what]

    def artifacts(self) -> tuple[Kept, ...]:
        return tuple(self.kept.values())

    def artifact(self, what: str) -> Kept:
        if what not in self.kept:
            raise NotFound(f"There is no {what}.")
        return self.kept[what]

    def remove_artifact(self, what: str, *, force: bool) -> None:
        del self.kept[what]

    # ---- nodes ---------------------------------------------------------------------------------

    def nodes(self) -> tuple[object, ...]:
        return (node("n1"), node("n2"), node("n3", state="lost"))

    def node(self, name: str) -> object:
        dram = SimpleNamespace(capacity=4 * self.room, used=3 * self.room)
        return SimpleNamespace(node=name, tiers={Tier.DRAM: dram})

    def stats(self) -> object:
        return SimpleNamespace(used_bytes=3 * self.room)

    def block_stats(self) -> tuple[NodeBlocks, ...]:
        tiers = {Tier.DRAM: BlockCount(blocks=0, bytes=0)}
        return (NodeBlocks(node=NodeId("n1"), state="up", epoch=1, tiers=tiers),)

    # ---- blocks --------------------------------------------------------------------------------

    def put_blocks(self, keys: Sequence[bytes], views: Sequence[memoryview]) -> None:
        self.blocks.update((k, bytes(view)) for k, view in zip(keys, views, strict=True))
        self.note("put_blocks")

    def get_blocks(
        self, keys: Sequence[bytes], *, into: Sequence[memoryview] | None = None
    ) -> list[object]:
        if into is None:
            return [self.blocks.get(key) for key in keys]
        for key, view in zip(keys, into, strict=True):
            view[:] = self.blocks[key]
            view[0] ^= int(self.damage)
        return [True] * len(keys)

    def evict_blocks(self, *, space: str) -> int:
        gone = len(self.blocks)
        self.blocks.clear()
        return gone
