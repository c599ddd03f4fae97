import msgspec

from tensorcast.schema.api_faults import FaultInfo


def test_a_fault_survives_a_round_trip():
    fault = FaultInfo(kind="unavailable", detail="Gone.", retryable=True)
    assert msgspec.json.decode(msgspec.json.encode(fault), type=FaultInfo) == fault
