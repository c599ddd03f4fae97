import msgspec
import pytest

from samples import record
from tensorcast.schema.aggregates.namespace import NamespaceRules, decide, evolve
from tensorcast.schema.commands import GrantAccess, RevokeAccess
from tensorcast.schema.errors import InvalidArgument, NotFound, Rejected
from tensorcast.schema.namespaces import Right

ALL = tuple(Right)


def grant(who: str, *rights: Right) -> GrantAccess:
    return GrantAccess(namespace="team", who=who, rights=rights)


def revoke(who: str, *rights: Right) -> RevokeAccess:
    return RevokeAccess(namespace="team", who=who, rights=rights)


def run(*commands, actor: str = "user:ada@desk") -> NamespaceRules | None:
    state = None
    for seq, command in enumerate(commands, 1):
        for event in decide(state, command):
            state = evolve(state, record(event, seq, actor=actor), event)
    return state


def test_the_first_rule_gives_all_rights_to_who_made_it():
    assert run(grant("bob", Right.READ)).rules == {"ada": ALL, "bob": (Right.READ,)}
    assert run(grant("bob", Right.READ), actor="engine:e1@carl").rules["carl"] == ALL
    assert run(grant("bob", Right.READ), actor="controlplane").rules == {"bob": (Right.READ,)}


def test_rights_add_up_and_asking_again_says_nothing():
    state = run(grant("bob", Right.READ), grant("bob", Right.KEYS, Right.READ))
    assert state.rules["bob"] == (Right.READ, Right.KEYS)
    assert decide(state, grant("bob", Right.READ)) == ()


def test_nothing_can_be_taken_from_who_has_nothing():
    state = run(grant("bobby", Right.READ))
    with pytest.raises(NotFound, match=r"'bob' has no such right .* did you mean 'bobby'"):
        decide(state, revoke("bob", Right.READ))
    with pytest.raises(NotFound, match="Rules there are for ada, bobby"):
        decide(state, revoke("bobby", Right.KEYS))
    gone = run(grant("bob", Right.READ), revoke("bob", *ALL), revoke("ada", *ALL))
    with pytest.raises(NotFound, match="has no rules"):
        decide(gone, revoke("bob", Right.READ))


def test_a_name_with_space_is_refused_unless_it_has_rules_already():
    odd = GrantAccess(namespace="te am", who="bob", rights=(Right.READ,))
    with pytest.raises(InvalidArgument, match="has space in it"):
        decide(None, odd)
    old = msgspec.structs.replace(run(grant("bob", Right.READ)), id="te am")
    assert decide(old, msgspec.structs.replace(odd, rights=(Right.KEYS,)))


def test_what_is_taken_away_is_gone():
    state = run(grant("bob", Right.READ, Right.WRITE), revoke("bob", Right.READ, Right.GRANT))
    assert state.rules["bob"] == (Right.WRITE,)
    assert "bob" not in run(grant("bob", Right.READ), revoke("bob", *ALL)).rules


def test_somebody_can_always_change_the_rules():
    state = run(grant("bob", Right.READ))
    with pytest.raises(Rejected, match="Nobody could change"):
        decide(state, revoke("ada", Right.GRANT))
    assert run(grant("bob", Right.READ), revoke("bob", *ALL), revoke("ada", *ALL)).rules == {}


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (revoke("ada", Right.READ), NotFound),
        (grant("ada"), InvalidArgument),
        (grant("a b", Right.READ), InvalidArgument),
        (GrantAccess(namespace="a/b", who="ada", rights=ALL), InvalidArgument),
    ],
)
def test_what_makes_no_sense_is_refused(command, error):
    with pytest.raises(error):
        decide(None, command)
