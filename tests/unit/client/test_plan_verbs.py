from tensorcast.client.plan_verbs import PlanVerbs
from tensorcast.client.position import Position
from tensorcast.schema.api import Executed
from tensorcast.schema.ids import Seq, is_plan_id
from tensorcast.schema.plan_commands import CancelPlan, SubmitPlan
from tensorcast.schema.plans import EmitStep, Input, PlanSpec

SPEC = PlanSpec(name="x", steps=(EmitStep(id="a", topic="t"),))
NAMED = PlanSpec(name="x", steps=SPEC.steps, inputs={"v": Input()}, dedup_id="run-${input.v}")


class _Api(PlanVerbs):
    def __init__(self) -> None:
        self.position = Position()
        self.commands = []

    async def execute(self, command, *, force=False):
        self.commands.append(command)
        return Executed(events=(), seq=Seq(1))


async def test_the_same_dedup_id_gives_the_same_plan():
    api = _Api()
    one = await api.submit_plan(NAMED, {"v": 1})
    assert one == await api.submit_plan(NAMED, {"v": 1})
    assert one != await api.submit_plan(NAMED, {"v": 2})
    assert await api.submit_plan(SPEC, dedup_id="d") == await api.submit_plan(SPEC, dedup_id="d")
    assert await api.submit_plan(SPEC) != await api.submit_plan(SPEC)
    assert all(isinstance(one, SubmitPlan) and is_plan_id(one.plan) for one in api.commands)


async def test_users_words_become_commands():
    api = _Api()
    await api.cancel_plan("x", reason="enough")
    await api.pause_plan("x")
    await api.resume_plan("x")
    assert api.commands[0] == CancelPlan(plan="x", reason="enough")
    assert len(api.commands) == 3
