from immutables import Map

from tensorcast.schema.indexes import add, group, group_members, join, mark, remove

PAIRS = [("a", 1), ("b", 2), ("a", 3)]


def test_grouping_all_at_once_or_one_by_one_is_the_same():
    index, members = Map(), Map()
    for at, member in PAIRS:
        index, members = add(index, at, member), join(members, at, member)
    assert dict(index) == dict(group(PAIRS)) == {"a": {1, 3}, "b": {2}}
    assert members == group_members(PAIRS)


def test_what_is_so_already_is_the_same_object():
    index, members = group(PAIRS), group_members(PAIRS)
    assert add(index, "a", 1) is index
    assert join(members, "a", 1) is members
    assert join(members, "c", 1, is_in=False) is members
    assert mark(members["a"], 2, is_in=False) is members["a"]


def test_no_empty_sets_are_kept():
    assert dict(remove(group(PAIRS), "b", 2)) == {"a": {1, 3}}
    assert set(join(group_members(PAIRS), "b", 2, is_in=False)) == {"a"}
    assert remove(Map(), "a", 1) == Map()
