"""What the scheduler's side and the worker's side tell each other: plain values, since they may be
in different processes."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class WorkerFacts:
    """What a worker says of itself once. `rank` among all workers, `parts`: pieces that a block is
    cut into, `part_bytes` of each; `layout`: everything about the bytes of a block that must be
    equal where it is read; `weights`: what its model computes with, if it is known."""

    rank: int
    parts: int
    part_bytes: tuple[int, ...]
    layout: str
    weights: str | None


@dataclass(frozen=True)
class LoadJob:
    """Blocks to be brought into the cache for a request. `node`: who may have those that nobody
    else is known to have."""

    request_id: str
    space: str
    hashes: tuple[bytes, ...]
    block_ids: tuple[int, ...]
    node: str | None = None


@dataclass(frozen=True)
class SaveJob:
    """Blocks to be kept for everybody. They are not changed before the worker says that it is
    done, or was told that they are given up."""

    number: int
    request_id: str
    space: str
    hashes: tuple[bytes, ...]
    block_ids: tuple[int, ...]


@dataclass
class StepPlan:
    """From the scheduler's side, each step. `weights`: those that it takes the workers to have;
    jobs are refused by a worker that has others. The blocks of `preempted` requests are given up
    now, those of `finishing` ones as soon as their jobs are done. `is_idle`: nothing is computed in
    this step."""

    weights: str | None = None
    loads: list[LoadJob] = field(default_factory=list)
    saves: list[SaveJob] = field(default_factory=list)
    preempted: set[str] = field(default_factory=set)
    finishing: list[str] = field(default_factory=list)
    is_idle: bool = False


@dataclass
class StepReport:
    """From the workers, each step. `weights` are those of the step by rank; `done` says for each
    save job how many workers have ended it, `dropped` names those that one of them did not keep,
    `failed` the requests whose load was not complete."""

    weights: dict[int, str | None] = field(default_factory=dict)
    done: dict[int, int] = field(default_factory=dict)
    dropped: set[int] = field(default_factory=set)
    failed: set[str] = field(default_factory=set)

    def add(self, other: StepReport) -> None:
        """Takes in what another worker reports of the same step."""
        self.weights.update(other.weights)
        for number, count in other.done.items():
            self.done[number] = self.done.get(number, 0) + count
        self.dropped |= other.dropped
        self.failed |= other.failed
