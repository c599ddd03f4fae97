import pytest

from tensorcast.schema.access import Access, actor_of, read_access, user_identity
from tensorcast.schema.errors import InvalidArgument


def test_without_credentials_nobody_has_an_identity():
    assert read_access({}, "controlplane") == Access()
    assert Access().inbox == "_INBOX"


def test_an_identity_hears_its_own_answers():
    environ = {"TENSORCAST_NATS_CREDENTIALS": "/k", "TENSORCAST_USER": "ada"}
    found = read_access(environ)
    assert (found.identity, found.user, found.inbox) == ("user.ada", "ada", "_INBOX.user.ada")
    assert read_access(environ, "mover.n1").identity == "mover.n1"
    assert read_access(environ, "mover.n1").user == ""


def test_a_certificate_needs_its_key():
    with pytest.raises(InvalidArgument, match="go together"):
        read_access({"TENSORCAST_NATS_CERT": "/c"})
    whole = {"TENSORCAST_NATS_CERT": "/c", "TENSORCAST_NATS_CERT_KEY": "/k"}
    assert read_access(whole).has_tls
    assert read_access({"TENSORCAST_NATS_CA": "/c"}).has_tls


@pytest.mark.parametrize("name", ["", "a.b", "a b", "*", ">", "é", "a" * 65])
def test_a_user_is_one_token_of_a_subject(name):
    with pytest.raises(InvalidArgument):
        user_identity(name)


@pytest.mark.parametrize(
    ("claimed", "actor"),
    [
        ("user:ada@desk", "user:ada@desk"),
        ("user:eve@desk", "user:ada@desk"),
        ("user:eve", "user:ada"),
        ("user:eve@x@y", "user:ada@x@y"),
        ("engine:e1", "engine:e1@ada"),
        ("engine:e1@ada", "engine:e1@ada"),
        ("engine:e1@eve", "engine:e1@eve@ada"),
        ("anything", "anything@ada"),
    ],
)
def test_an_actor_has_the_name_that_was_proved(claimed, actor):
    assert actor_of("ada", claimed) == actor
