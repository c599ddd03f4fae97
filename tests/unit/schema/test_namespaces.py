import pytest

from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.namespaces import (
    Right,
    is_allowed,
    namespace_of,
    order_rights,
    parse_namespace,
    parse_who,
)

RULES = {"ada": (Right.READ, Right.WRITE), "*": (Right.READ,), "bob": (Right.GRANT,)}


@pytest.mark.parametrize(
    ("key", "namespace"),
    [
        ("model@1", "default"),
        ("team/model@1", "team"),
        ("a/b/c", "a"),
        ("/model", "default"),
        ("default/model", "default"),
    ],
)
def test_a_key_is_in_the_namespace_before_its_first_slash(key: str, namespace: str):
    assert namespace_of(key) == namespace


@pytest.mark.parametrize("text", ["", " a", "a/b", "a\n", "x" * 257])
def test_what_no_key_begins_with_is_no_namespace(text: str):
    with pytest.raises(InvalidArgument, match="not a namespace"):
        parse_namespace(text)


@pytest.mark.parametrize("text", ["", "a b", "a@b", "**"])
def test_rules_are_for_users_and_for_everybody(text: str):
    with pytest.raises(InvalidArgument, match="no user"):
        parse_who(text)
    assert parse_who("*") == "*"
    assert parse_who("ada") == "ada"


@pytest.mark.parametrize(
    ("rules", "user", "right", "expected"),
    [
        ({}, "eve", Right.WRITE, True),
        (RULES, "ada", Right.WRITE, True),
        (RULES, "eve", Right.WRITE, False),
        (RULES, "eve", Right.READ, True),
        (RULES, "bob", Right.READ, True),
        (RULES, "bob", Right.WRITE, False),
        (RULES, "bob", Right.GRANT, True),
        (RULES, "ada", Right.KEYS, False),
        ({"ada": (Right.READ,)}, "eve", Right.READ, False),
        ({"ada": (Right.READ,)}, "", Right.READ, False),
    ],
)
def test_rules_decide(rules, user: str, right: Right, expected: bool):
    assert is_allowed(rules, user, right) is expected


def test_rights_are_told_once_and_in_order():
    assert order_rights([Right.GRANT, Right.READ, Right.GRANT]) == (Right.READ, Right.GRANT)
