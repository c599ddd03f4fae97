import os

import pytest

from tensorcast.movers.memory.cgroups import memory_group, shares_memory_limit

UNIFIED = "0::/user.slice/app\n"
HYBRID = "4:memory:/box/one\n3:cpuset:/\n0::/user.slice\n"


@pytest.mark.parametrize(
    ("text", "group"),
    [
        (UNIFIED, "/user.slice/app"),
        (HYBRID, "/box/one"),
        ("5:cpu,memory:/both\n0::/\n", "/both"),
        ("0::/odd:name\n", "/odd:name"),
        ("", ""),
    ],
)
def test_the_group_that_counts_memory(text, group):
    assert memory_group(text) == group


def test_a_process_shares_with_itself_and_not_with_the_unknown():
    assert shares_memory_limit(os.getpid())
    assert not shares_memory_limit(0)
