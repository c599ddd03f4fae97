"""Roll-outs in a world of tests: engines that do what they are asked, or fail, die and come back,
as a script says. Nothing waits and nothing is random."""

from __future__ import annotations

from collections.abc import Callable

from plan_worlds import Faults, PlanWorld
from samples import artifact_id
from tensorcast.controlplane.core.plans.runner import next_due
from tensorcast.schema.aggregates.engine import EngineStatus
from tensorcast.schema.aggregates.plan import OPEN, Plan
from tensorcast.schema.commands import (
    EmitSignal,
    LoseEngine,
    MoveKey,
    RegisterEngine,
    ServeWeights,
)
from tensorcast.schema.events import KeyMoved, SignalEmitted
from tensorcast.schema.ids import EngineId, Key, PlanId
from tensorcast.schema.rollouts import SWITCH, UNSTAGE, Member, Part, VersionSet

NAME = "policy"
OLD, NEW = artifact_id("old"), artifact_id("new")
Mishap = str
"""What comes of a call: `done`, `refused`, `dies` before it, `dies after` it, `silent` for ever."""
Script = Callable[[str, str, int], Mishap]
"""(engine, verb, how many calls it has had before) -> what comes of it."""


def all_well(engine: str, verb: str, number: int) -> Mishap:
    return "done"


class Engine:
    """What an engine really serves, whatever the record says."""

    def __init__(self, name: str, node: str) -> None:
        self.name = name
        self.node = node
        self.life = 1
        self.is_alive = True
        self.serves = OLD
        self.staged = ""
        self.calls: list[str] = []


class RolloutWorld(PlanWorld):
    """A cluster whose engines serve `policy@1`; `policy@2` is published on node n1. `faults` are
    those of operations; `is_twice`: each call is given twice; `most`: so many decisions of a look
    are carried out before the runner dies and another one begins anew."""

    def __init__(self, engines: int = 3, script: Script = all_well, *, parts: int = 1) -> None:
        super().__init__(engines, artifacts=())
        self.script = script
        self.faults: Faults | None = None
        self.is_twice = False
        self.most: int | None = None
        self.put("old", "n1")
        self.engines: dict[str, Engine] = {}
        self.parts = tuple(
            Part(key=NAME if not part else f"{NAME}.rank{part}", artifact=NEW, expect=OLD)
            for part in range(parts)
        )
        self.put("new", "n1")
        for part in self.parts:
            self.execute(MoveKey(key=Key(part.key), artifact=OLD))
        self.execute(MoveKey(key=Key(f"{NAME}@1"), artifact=OLD))
        self.execute(MoveKey(key=Key(f"{NAME}@2"), artifact=NEW))
        for number in range(1, engines + 1):
            self.start(f"e{number}", f"n{number}")
        self._read = len(self.events)

    @property
    def wanted(self) -> VersionSet:
        return VersionSet(name=NAME, version=f"{NAME}@2", parts=self.parts)

    @property
    def members(self) -> tuple[Member, ...]:
        return tuple(
            Member(engine=one.name, node=one.node, version=f"{NAME}@1", artifact=OLD)
            for one in self.engines.values()
        )

    # ---- engines -------------------------------------------------------------------------------

    def start(self, name: str, node: str) -> Engine:
        """An engine begins, or begins a new life: with what the key names."""
        engine = self.engines.setdefault(name, Engine(name, node))
        engine.is_alive, engine.staged = True, ""
        engine.serves = self.view.keys[Key(NAME)].artifact
        self._tell(engine)
        return engine

    def restart(self, name: str) -> None:
        self.engines[name].life += 1
        self.start(name, self.engines[name].node)

    def kill(self, name: str) -> None:
        """It is gone, and that is noticed."""
        engine = self.engines[name]
        if engine.is_alive:
            engine.is_alive = False
            life = str(engine.life)
            self.execute(LoseEngine(engine=EngineId(name), life=life, last_seen=self.now))

    def _tell(self, engine: Engine) -> None:
        name, life = EngineId(engine.name), str(engine.life)
        if name not in self.view.engines or self.view.engines[name].life != life:
            self.execute(
                RegisterEngine(engine=name, life=life, kind="test", node=engine.node, ttl_s=15)
            )
        version = f"{NAME}@{2 if engine.serves == NEW else 1}"
        self.execute(
            ServeWeights(
                engine=name, life=life, version=version, artifact=engine.serves, since=self.now
            )
        )

    def take_calls(self) -> int:
        """Each engine that lives takes the calls that came since; returns how many."""
        taken = 0
        while self._read < len(self.events):
            recorded = self.events[self._read]
            self._read += 1
            event = recorded.event
            if isinstance(event, SignalEmitted) and event.topic.startswith("engine.call."):
                engine = self.engines[event.topic.removeprefix("engine.call.")]
                for _ in range(2 if self.is_twice else 1):
                    if engine.is_alive:
                        self._take(engine, event.data)
                taken += 1
        return taken

    def _take(self, engine: Engine, data: dict) -> None:
        verb, said = data["verb"], data["arguments"]
        mishap = self.script(engine.name, verb, len(engine.calls))
        engine.calls.append(verb)
        if mishap == "silent":
            return
        if mishap == "dies":
            self.kill(engine.name)
            return
        answer: dict = {"call": data["call"], "outputs": {}}
        if mishap == "refused":
            fault = {"kind": "invalid", "detail": "It does not fit.", "permanent": True}
            answer = {"call": data["call"], "fault": fault}
        elif verb == UNSTAGE:
            engine.staged = ""
        elif verb == SWITCH and engine.staged:
            engine.serves, engine.staged = engine.staged, ""
            self._tell(engine)
        elif verb != SWITCH:
            engine.staged = said["artifact"] if said["artifact"] != engine.serves else ""
        if mishap == "dies after":
            self.kill(engine.name)
        else:
            self.execute(EmitSignal(topic=f"engine.answer.{engine.name}", data=answer))

    # ---- the whole -----------------------------------------------------------------------------

    def finish(self, plan: PlanId, rounds: int = 500) -> Plan:
        """Looks, works, answers and lets time pass until the plan is over; checks at each move of a
        key that who lives serves the new weights."""
        for _ in range(rounds):
            progressed = self.look(plan, most=self.most)
            state = self.view.plans[plan]
            if state.status not in OPEN:
                return state
            if progressed or self.work(self.faults) or self.take_calls():
                continue
            due = next_due(state, self.now)
            assert due is not None, f"it waits for ever: {self.statuses(plan)}"
            self.now = due
        raise AssertionError("the roll-out does not come to an end")

    def moves(self) -> list[tuple[int, str]]:
        """The moves of the keys that are rolled out, since the beginning: (position, key)."""
        keys = {part.key for part in self.parts}
        return [
            (one.seq, one.event.key)
            for one in self.events
            if isinstance(one.event, KeyMoved) and one.event.key in keys and one.event.previous
        ]

    def is_up(self, name: str) -> bool:
        return self.view.engines[EngineId(name)].status is EngineStatus.UP
