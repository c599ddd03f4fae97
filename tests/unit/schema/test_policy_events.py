from tensorcast.schema.events import AggregateKind, aggregate_of
from tensorcast.schema.policy_events import POLICY_EVENT_TYPES, PolicyStopped


def test_they_belong_to_their_policy():
    event = PolicyStopped(policy="spread", reason="raised", detail="KeyError")
    assert aggregate_of(event) == (AggregateKind.POLICY, "spread")
    assert all(name.startswith("policy.") for name in POLICY_EVENT_TYPES)
