import pytest

from tensorcast.schema import subjects
from tensorcast.schema.events import AggregateKind
from tensorcast.schema.nats_rights import Role, identity_of, rights_of

ROLES = [
    (Role.CONTROLPLANE, ""),
    (Role.MOVER, "n1"),
    (Role.USER, "ada"),
    (Role.READER, "bob"),
]


def is_in(subject: str, patterns) -> bool:
    return any(covers(pattern.split("."), subject.split(".")) for pattern in patterns)


def covers(pattern: list[str], subject: list[str]) -> bool:
    if pattern[-1] == ">" and len(subject) >= len(pattern):
        pattern, subject = pattern[:-1], subject[: len(pattern) - 1]
    return len(pattern) == len(subject) and all(
        one in ("*", token) for one, token in zip(pattern, subject, strict=True)
    )


@pytest.mark.parametrize(("role", "name"), ROLES)
def test_nobody_may_delete_purge_or_change_a_log(role, name):
    allowed = rights_of(role, name, "c").publish
    for verb in ("DELETE", "PURGE", "UPDATE", "MSG.DELETE", "SNAPSHOT", "RESTORE"):
        assert not is_in(f"$JS.API.STREAM.{verb}.TC_c_LOG", allowed)
    assert not is_in("$JS.API.STREAM.CREATE.OTHER", allowed)
    assert not is_in("$SYS.REQ.SERVER.PING", allowed)


@pytest.mark.parametrize(("role", "name"), ROLES)
def test_each_hears_only_its_own_answers(role, name):
    heard = rights_of(role, name, "c").subscribe
    assert is_in(f"_INBOX.{identity_of(role, name)}.x.y", heard)
    assert not is_in("_INBOX.user.eve.x.y", heard)
    assert not is_in("_INBOX.mover.n9.x.y", heard)
    assert not is_in("tc.c.log.artifact.a", heard)


@pytest.mark.parametrize(("role", "name"), ROLES)
def test_rights_end_at_the_cluster(role, name):
    for pattern in rights_of(role, name, "c").publish:
        assert not is_in(subjects.log_subject("d", AggregateKind.ARTIFACT, "a"), [pattern])
        assert not is_in(subjects.api_subject("d", "execute"), [pattern])


def test_a_mover_speaks_for_its_own_node_where_subjects_tell_nodes_apart():
    allowed = rights_of(Role.MOVER, "n1", "c").publish
    for own, other in (
        (subjects.heartbeat("c", "n1"), subjects.heartbeat("c", "n2")),
        (subjects.kv_changed("c", "n1"), subjects.kv_changed("c", "n2")),
        (
            subjects.log_subject("c", AggregateKind.NODE, "n1"),
            subjects.log_subject("c", AggregateKind.NODE, "n2"),
        ),
    ):
        assert is_in(own, allowed)
        assert not is_in(other, allowed)
    for kind in (AggregateKind.LEASE, AggregateKind.ENGINE):
        assert not is_in(subjects.log_subject("c", kind, "x"), allowed)


def test_a_user_asks_in_its_own_name_and_writes_to_no_log():
    allowed = rights_of(Role.USER, "ada", "c").publish
    assert is_in(subjects.user_subject("c", "ada", "artifact.show"), allowed)
    assert not is_in(subjects.user_subject("c", "eve", "execute"), allowed)
    assert not is_in(subjects.api_subject("c", "execute"), allowed)
    assert not is_in(subjects.log_subject("c", AggregateKind.KEY, "k"), allowed)
    assert not is_in("$JS.API.CONSUMER.CREATE.TC_c_LOG.x", allowed)
    assert not is_in("$JS.API.CONSUMER.CREATE.TC_c_LOG.x.tc.c.log.>", allowed)


def test_a_reader_looks_and_changes_nothing():
    allowed = rights_of(Role.READER, "bob", "c").publish
    for verb in ("status", "key.show", "audit.log", "replay"):
        assert is_in(subjects.user_subject("c", "bob", verb), allowed)
    for verb in ("execute", "signal.emit", "engine_blocks.report"):
        assert not is_in(subjects.user_subject("c", "bob", verb), allowed)
