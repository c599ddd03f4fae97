from tensorcast.movers.transports.rdma.statuses import MEANINGS, meaning


def test_every_error_says_what_it_means():
    assert "RETRY_EXC" in meaning(12).text
    assert "99" in meaning(99).text
    assert all(one.text.endswith(")") for one in MEANINGS.values()), "each gives its name"


def test_only_a_lost_way_makes_another_queue_pair_useless():
    assert {number for number, one in MEANINGS.items() if one.is_path} == {12, 13, 19, 20}
