import msgspec
import pytest

from tensorcast.schema.api_policies import ChangePolicy
from tensorcast.schema.commands import ConfigurePolicy, EnablePolicy, StopPolicy


@pytest.mark.parametrize(
    "command",
    [EnablePolicy(policy="a"), ConfigurePolicy(policy="a", parameters={"n": [1, None]})],
)
def test_a_change_survives_the_way(command):
    sent = msgspec.json.encode(ChangePolicy(command=command, actor="user:ada"))
    assert msgspec.json.decode(sent, type=ChangePolicy).command == command


def test_nobody_stops_a_policy_as_the_guard_does():
    stop = StopPolicy(policy="a", reason="r", detail="d")
    sent = msgspec.json.encode(ChangePolicy(command=stop, actor="user:ada"))
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(sent, type=ChangePolicy)
