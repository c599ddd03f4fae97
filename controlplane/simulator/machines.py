"""Movers that only pretend to copy: they start what is issued for their nodes, take as long as the
wires and disks do, make room when there is none, and fail when they are made to."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from tensorcast.controlplane.core.view import (
    DEMAND,
    free_bytes,
    has_survivor,
    is_leased,
    is_making,
    is_pinned,
    is_ready,
    live_replica,
    replicas_on,
    sealed,
    size_bytes,
    source_nodes,
    used_bytes,
)
from tensorcast.controlplane.simulator.links import Link
from tensorcast.controlplane.simulator.world import World
from tensorcast.schema.aggregates.node import Node, NodeStatus
from tensorcast.schema.aggregates.operation import Operation, OperationStatus
from tensorcast.schema.aggregates.replica import ReplicaStatus
from tensorcast.schema.commands import (
    Command,
    CompleteReplica,
    DropReplica,
    EvictReplica,
    FailOperation,
    IssueOperation,
    JoinNode,
    LoseNode,
    LoseReplica,
    ReportPressure,
    StartOperation,
    StartReplica,
    SucceedOperation,
)
from tensorcast.schema.envelope import Recorded
from tensorcast.schema.events import OperationIssued, OperationRetried
from tensorcast.schema.faults import Fault, FaultKind
from tensorcast.schema.ids import (
    ArtifactId,
    Epoch,
    NodeId,
    OperationId,
    ReplicaId,
    Tier,
    derive_operation_id,
    replica_id,
)
from tensorcast.schema.work import Evict, Load, Materialize, Persist, Verify, target_tier

START_S: Final = 0.001
DISK_RATE: Final = 2e9
TIMEOUT_S: Final = 5.0
ROOM_S: Final = 1.0
ROOM_TRIES: Final = 5
HIGH, LOW = 0.9, 0.8
"""How full memory may become before it is cleared in the background, and down to where."""


class Machine:
    """One node's mover; `disk_rate` is in bytes a second."""

    def __init__(self, world: World, node: NodeId, *, disk_rate: float = DISK_RATE) -> None:
        self.node = node
        self.is_up = True
        self.used_at: dict[ArtifactId, float] = {}
        self._world = world
        self._disk_rate = disk_rate
        self._reads = 0
        self._pressed_s = -ROOM_S
        self._link = Link(world, node)

    # ---- life --------------------------------------------------------------------------------

    def join(self, command: JoinNode) -> None:
        """The node is there from now on."""
        self.is_up = True
        self._world.network.set_rate(self.node, float(command.bandwidth))
        self._say(command)

    def crash(self) -> None:
        """The mover dies, and its memory with it; after a while its node is lost."""
        self.is_up = False
        self._world.network.drop(self.node)
        self._fall_silent()

    def _fall_silent(self) -> None:
        """After a while nobody waits for the node any more."""
        epoch = self._epoch

        def lose() -> None:
            is_silent = not self.is_up or self._link.is_cut
            if is_silent and self._world.view.nodes[self.node].epoch == epoch:
                command = LoseNode(node=self.node, epoch=epoch, silent_s=TIMEOUT_S)
                self._world.try_to(command, actor="timers")

        self._world.agenda.after(TIMEOUT_S, lose)

    @property
    def is_cut(self) -> bool:
        """Whether the mover does not reach the log."""
        return self._link.is_cut

    def cut(self) -> None:
        """The mover lives on, and does not reach the log any more; after a while its node is lost.
        Other nodes it reaches."""
        if not self._link.is_cut:
            self._link.cut()
            self._fall_silent()

    def mend(self) -> None:
        """The mover reaches the log again, and tells what it has done. A node that was lost
        meanwhile joins again, with all that is in its memory."""
        self._link.mend()
        if self.is_up and self._state.status is NodeStatus.LOST:
            self._join_anew(keeps_memory=True)
        elif self.is_up:
            self._take_up()

    def restart(self) -> None:
        """A new life of the mover: what was on its disk is there, what was in memory is not. It
        begins once the log can be reached."""
        if self._link.is_cut:
            self._world.agenda.after(ROOM_S, self.restart)
        else:
            self._join_anew(keeps_memory=False)

    def _join_anew(self, *, keeps_memory: bool) -> None:
        state = self._state
        epoch = Epoch(state.epoch + 1)
        self.join(
            JoinNode(
                node=self.node,
                epoch=epoch,
                address=state.address,
                tiers=state.tiers,
                transports=state.transports,
                labels=state.labels,
                overflow=state.overflow,
                bandwidth=state.bandwidth,
            )
        )
        for replica in list(replicas_on(self._link.view, self.node)):
            if replica.status not in (ReplicaStatus.READY, ReplicaStatus.FILLING):
                continue
            is_kept = keeps_memory or replica.tier is Tier.DISK
            if is_kept and replica.status is ReplicaStatus.READY:
                self._say(self._complete(replica.artifact, replica.tier))
            else:
                self._say(LoseReplica(replica=replica.id, epoch=epoch, detail="a crash took it"))
        self._take_up()

    def _take_up(self) -> None:
        for name in sorted(self._link.view.open_by_node.get(self.node, ())):
            self._begin_later(name)

    @property
    def _state(self) -> Node:
        return self._link.view.nodes[self.node]

    @property
    def _epoch(self) -> Epoch:
        return self._state.epoch

    def _say(self, *commands: Command) -> bool:
        return self._link.say(*commands)

    # ---- readers -----------------------------------------------------------------------------

    def put(self, artifact: ArtifactId) -> bool:
        """A replica appears in memory, if there is room; else room is made first."""
        if free_bytes(self._link.view, self.node, Tier.DRAM) < self._size(artifact):
            self._press(self._size(artifact))
            return False
        done = self._say(self._complete(artifact, Tier.DRAM))
        self._watch_level()
        return done

    def read(self, artifact: ArtifactId) -> bool:
        """Somebody on the node wants an artifact: whether it is there. If not, it is brought."""
        view = self._link.view
        self.used_at[artifact] = self._world.agenda.now_s
        if is_ready(view, artifact, self.node, Tier.DRAM):
            return True
        if is_making(view, artifact, self.node, Tier.DRAM) or not sealed(view, artifact):
            return False
        self._reads += 1
        operation = derive_operation_id(f"{self.node}/{self._reads}", DEMAND, 0)
        on_disk = is_ready(view, artifact, self.node, Tier.DISK)
        work = Load(artifact=artifact) if on_disk else Materialize(artifact=artifact)
        self._say(IssueOperation(operation=operation, node=self.node, work=work, policy=DEMAND))
        if self._link.is_cut:  # a demand read never waits for the log
            self._begin_later(operation)
        return False

    # ---- work --------------------------------------------------------------------------------

    def take(self, recorded: Recorded) -> None:
        """Begins what is issued for its node."""
        event = recorded.event
        if self._link.is_cut:
            return
        if isinstance(event, OperationIssued | OperationRetried):
            self._begin_later(event.operation)

    def resume(self, name: OperationId) -> None:
        """Takes up an operation that was open before the simulation began."""
        self._begin_later(name)

    def _begin_later(self, name: OperationId) -> None:
        self._world.agenda.after(START_S, lambda: self._begin(name))

    def _begin(self, name: OperationId, tries: int = 0) -> None:
        operation = self._link.view.operations[name]
        status = operation.status
        if not self.is_up or status not in (OperationStatus.ISSUED, OperationStatus.RUNNING):
            return
        work = operation.work
        tier = target_tier(work)
        if tier is not None and not self._has_room(work.artifact, tier):
            if tries >= ROOM_TRIES:
                self._fail(operation, FaultKind.OUT_OF_CAPACITY)
                return
            self._press(self._size(work.artifact), tier)
            self._world.agenda.after(ROOM_S, lambda: self._begin(name, tries + 1))
            return
        if not self._say(StartOperation(operation=name, epoch=self._epoch)):
            return
        match work:
            case Materialize():
                self._pull(self._link.view.operations[name], work)
            case Load(tier=tier):
                held = tier is Tier.OBJECT or is_ready(
                    self._link.view, work.artifact, self.node, Tier.DISK
                )
                self._fill_from_disk(name, work.artifact, Tier.DRAM, held=held)
            case Persist(tier=tier):
                held = is_ready(self._link.view, work.artifact, self.node, Tier.DRAM)
                self._fill_from_disk(name, work.artifact, tier, held=held)
            case Evict():
                self._evict(self._link.view.operations[name], work)
            case Verify():
                self._world.agenda.after(
                    self._size(work.artifact) / self._disk_rate, lambda: self._succeed(name, 0)
                )

    def _has_room(self, artifact: ArtifactId, tier: Tier) -> bool:
        view = self._link.view
        if live_replica(view, artifact, self.node, tier) is not None or tier is Tier.OBJECT:
            return True
        return free_bytes(view, self.node, tier) >= self._size(artifact)

    def _pull(self, operation: Operation, work: Materialize) -> None:
        view, artifact = self._link.view, work.artifact
        if is_ready(view, artifact, self.node, work.tier):
            self._succeed(operation.id, 0)
            return
        planned = [node for node in work.sources if self._serves(node, artifact)]
        sources = planned or [n for n in source_nodes(view, artifact) if n != self.node]
        if not sources:
            self._fail(operation, FaultKind.UNAVAILABLE)
            return
        self._start_replica(artifact, work.tier)
        size = self._size(artifact)
        epoch = self._epoch

        def end(is_whole: bool) -> None:
            if self._epoch == epoch and self.is_up:
                self._end_fill(operation.id, artifact, work.tier, size, is_whole)

        if not planned:  # any two that have it: not everybody asks the same
            sources = self._world.random.sample(sources, min(2, len(sources)))
        self._world.network.pull(self.node, sources[:2], size, end)

    def _serves(self, node: NodeId, artifact: ArtifactId) -> bool:
        found = self._link.view.nodes.get(node)
        return (
            node != self.node
            and found is not None
            and found.status is NodeStatus.UP
            and (
                live_replica(self._link.view, artifact, node, Tier.DRAM) is not None
                or is_ready(self._link.view, artifact, node, Tier.DISK)
            )
        )

    def _fill_from_disk(
        self, name: OperationId, artifact: ArtifactId, tier: Tier, *, held: bool
    ) -> None:
        if not held:
            self._fail(self._link.view.operations[name], FaultKind.NOT_FOUND)
            return
        self._start_replica(artifact, tier)
        size, epoch = self._size(artifact), self._epoch

        def end() -> None:
            if self.is_up and self._epoch == epoch:
                self._end_fill(name, artifact, tier, size, True)

        self._world.agenda.after(size / self._disk_rate, end)

    def _start_replica(self, artifact: ArtifactId, tier: Tier) -> None:
        if live_replica(self._link.view, artifact, self.node, tier) is None:
            whole = self._complete(artifact, tier)
            self._say(
                StartReplica(
                    replica=whole.replica,
                    artifact=artifact,
                    node=self.node,
                    tier=tier,
                    epoch=whole.epoch,
                    chunks_total=whole.chunks_total,
                )
            )

    def _end_fill(
        self, name: OperationId, artifact: ArtifactId, tier: Tier, size: int, is_whole: bool
    ) -> None:
        operation = self._link.view.operations[name]
        if operation.status is not OperationStatus.RUNNING:
            replica = replica_id(artifact, self.node, tier)
            self._say(DropReplica(replica=replica, epoch=self._epoch))
            return
        if not is_whole:
            self._fail(operation, FaultKind.UNAVAILABLE)
            return
        self.used_at.setdefault(artifact, self._world.agenda.now_s)
        self._say(self._complete(artifact, tier), self._success(name, size))
        self._watch_level()

    def _evict(self, operation: Operation, work: Evict) -> None:
        view, replica = self._link.view, replica_id(work.artifact, self.node, work.tier)
        found = live_replica(view, work.artifact, self.node, work.tier)
        claimed = is_leased(view, work.artifact, self.node) or (
            sealed(view, work.artifact) is not None
            and found is not None
            and (is_pinned(view, work.artifact) or not has_survivor(view, found))
        )
        if self._link.is_cut:  # it waits for the log: a node that was given up destroys nothing
            self._world.agenda.after(ROOM_S, lambda: self._evict_later(operation, work))
            return
        if found is None or claimed:
            self._fail(operation, FaultKind.DENIED)
            return
        epoch = self._epoch
        self._say(
            EvictReplica(replica=replica, epoch=epoch, reason=work.reason),
            DropReplica(replica=replica, epoch=epoch),
            self._success(operation.id, 0),
        )

    def _evict_later(self, operation: Operation, work: Evict) -> None:
        now = self._link.view.operations[operation.id]
        if (
            self.is_up
            and now.status is OperationStatus.RUNNING
            and now.version == operation.version
        ):
            self._evict(operation, work)

    def _success(self, name: OperationId, moved: int) -> SucceedOperation:
        return SucceedOperation(operation=name, epoch=self._epoch, bytes_moved=moved)

    def _succeed(self, name: OperationId, moved: int) -> None:
        self._say(self._success(name, moved))

    def _fail(self, operation: Operation, kind: FaultKind) -> None:
        fault = Fault(kind=kind, detail="as the simulation wants it")
        self._say(FailOperation(operation=operation.id, epoch=self._epoch, fault=fault))

    def _complete(self, artifact: ArtifactId, tier: Tier) -> CompleteReplica:
        return CompleteReplica(
            replica=replica_id(artifact, self.node, tier),
            artifact=artifact,
            node=self.node,
            tier=tier,
            epoch=self._epoch,
            chunks_total=self._link.view.artifacts[artifact].manifest.chunks_total,
        )

    def _size(self, artifact: ArtifactId) -> int:
        return size_bytes(self._link.view, artifact)

    # ---- memory ------------------------------------------------------------------------------

    def _watch_level(self) -> None:
        capacity = self._state.tiers.get(Tier.DRAM, 0)
        used = used_bytes(self._link.view, self.node, Tier.DRAM)
        if capacity and used > HIGH * capacity:
            self._press(int(used - LOW * capacity))

    def _press(self, needed: int, tier: Tier = Tier.DRAM) -> None:
        """Says that room is needed, about once a second, and what nobody has used for longest."""
        now_s = self._world.agenda.now_s
        if now_s - self._pressed_s < ROOM_S / 2:
            return
        self._pressed_s = now_s
        self._say(
            ReportPressure(
                node=self.node,
                epoch=self._epoch,
                tier=tier,
                needed_bytes=needed,
                candidates=tuple(self._coldest(tier)),
            )
        )

    def _coldest(self, tier: Tier) -> Iterable[ReplicaId]:
        ready = [
            one
            for one in replicas_on(self._link.view, self.node)
            if one.tier is tier and one.status is ReplicaStatus.READY
        ]
        ready.sort(key=lambda one: (self.used_at.get(one.artifact, 0.0), one.id))
        return [one.id for one in ready[:100]]


class Fleet:
    """All machines of a world: events go to the machine that they are for."""

    def __init__(self, world: World) -> None:
        self.machines: dict[NodeId, Machine] = {}
        self._world = world
        world.watchers.append(self._on_event)

    def add(self, command: JoinNode, *, make: Callable[..., Machine] = Machine) -> Machine:
        """A node that was not there before joins."""
        machine = make(self._world, command.node)
        self.machines[command.node] = machine
        machine.join(command)
        return machine

    def _on_event(self, recorded: Recorded) -> None:
        event = recorded.event
        if isinstance(event, OperationIssued):
            machine = self.machines.get(event.node)
        elif isinstance(event, OperationRetried):
            machine = self.machines.get(self._world.view.operations[event.operation].node)
        else:
            return
        if machine is not None:
            machine.take(recorded)
