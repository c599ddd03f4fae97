from tensorcast.controlplane.services.refusals import TEXT_CHARS_MAX, Refusals


def test_the_last_refusal_and_how_many():
    refusals = Refusals()
    assert refusals.of("mine").times == 0
    refusals.note("mine", 4, "There is no\n artifact.")
    refusals.note("mine", 5, "x" * 1000)
    assert (refusals.of("mine").times, len(refusals.of("mine").last)) == (2, TEXT_CHARS_MAX)
    refusals.note("mine", 7, "There is no\n artifact.")
    assert refusals.of("mine").last == "event 7: There is no artifact."
    assert refusals.of("other").times == 0
