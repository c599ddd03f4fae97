import random

import pytest

from tensorcast.movers.transports.rdma.mailbox import MESSAGES_MAX, Credit
from tensorcast.movers.transports.rdma.wire import Credits, Later
from tensorcast.schema.errors import Corrupt


def drain(credit):
    sent = []
    while (found := credit.next()) is not None:
        sent.append(found)
    return sent


def test_no_more_is_sent_than_there_are_buffers_and_the_last_is_kept():
    credit = Credit(4)
    for n in range(9):
        credit.add(Later(n))
    assert [message.grant for _, message in drain(credit)] == [0, 1, 2]
    credit.received(2)
    assert [message.grant for _, message in drain(credit)] == [3, 4]


def test_credits_are_given_back_with_messages_or_by_themselves():
    credit = Credit(8)
    credit.received(0)
    assert drain(credit) == []
    credit.add(Later(1))
    assert drain(credit) == [(1, Later(1))]
    for _ in range(4):
        credit.received(0)
    assert drain(credit) == [(4, Credits())]


def test_two_ends_that_have_much_to_say_never_block():
    rng = random.Random(3)
    ends = [Credit(4), Credit(4)]
    heard = [0, 0]
    wires: list[list] = [[], []]
    for end in ends:
        for n in range(200):
            end.add(Later(n))
    for _ in range(5000):
        me = rng.randrange(2)
        while (found := ends[me].next()) is not None:
            wires[1 - me].append(found)
            assert len(wires[1 - me]) <= 4, "there would be no buffer for it"
        if wires[me]:
            given, message = wires[me].pop(0)
            ends[me].received(given)
            heard[me] += isinstance(message, Later)
    assert heard == [200, 200]


def test_an_end_that_counts_wrongly_is_broken():
    with pytest.raises(Corrupt):
        Credit(4).received(1)
    credit = Credit(4)
    for _ in range(MESSAGES_MAX):
        credit.add(Later(1))
    with pytest.raises(Corrupt):
        credit.add(Later(1))
