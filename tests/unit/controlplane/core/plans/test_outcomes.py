from tensorcast.controlplane.core.plans.outcomes import Broken, Done
from tensorcast.schema.faults import Fault, FaultKind


def test_an_outcome_knows_the_event_that_it_comes_from():
    fault = Fault(kind=FaultKind.INVALID, detail="no")
    assert (Done({}).because, Done({}, 7).because, Broken(fault, 8).because) == (0, 7, 8)
