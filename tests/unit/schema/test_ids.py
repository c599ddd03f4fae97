import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.ids import (
    KEY_BYTES_MAX,
    ArtifactId,
    NodeId,
    Tier,
    derive_event_id,
    derive_operation_id,
    number_of,
    parse_cluster,
    parse_key,
    parse_node,
    replica_id,
)


def test_derived_ids_never_change():
    """Golden values: two releases that run side by side must derive the same ids."""
    assert derive_operation_id("cause", "replicate", 0) == "op-6f0fc127b87f2160e66567f2"
    assert derive_event_id("tc.a.log.key.k", "cause", 0) == "1e8b5be2-baa5-8995-b2eb-f8267174b8d3"


def test_a_derived_event_id_is_a_uuid_of_version_8():
    parts = derive_event_id("s", "c", 1).split("-")
    assert [len(p) for p in parts] == [8, 4, 4, 4, 12]
    assert parts[2][0] == "8"
    assert parts[3][0] in "89ab"


@given(st.tuples(st.text(), st.text(), st.integers(0, 9)), st.integers(0, 2))
def test_every_part_of_a_decision_counts(decision, changed):
    other = list(decision)
    other[changed] = other[changed] + ("x" if changed < 2 else 1)
    if "\n" in decision[0] + decision[1]:
        return
    assert derive_operation_id(*decision) != derive_operation_id(*other)
    assert derive_event_id(*decision) != derive_event_id(*other)


def test_replica_id_names_artifact_node_and_tier():
    assert replica_id(ArtifactId("a"), NodeId("n1"), Tier.DISK) == "a:n1:disk"


@pytest.mark.parametrize("name", ["n", "n1", "gpu-07", "0", "a" * 63])
def test_node_names(name):
    assert parse_node(name) == name


@pytest.mark.parametrize("name", ["", "-n", "n-", "N1", "n.1", "n 1", "n/1", "é", "a" * 64, "n1\n"])
def test_no_node_names(name):
    with pytest.raises(InvalidArgument, match="not a node name"):
        parse_node(name)


def test_cluster_names_have_at_most_32_letters():
    assert parse_cluster("a" * 32) == "a" * 32
    for name in ("a" * 33, "", "a_b", "a.b", "-a", "A"):
        with pytest.raises(InvalidArgument, match="not a cluster name"):
            parse_cluster(name)


@pytest.mark.parametrize("key", ["llama-8b@step-42", "a/b.c", "schlüssel", "two words", "k" * 512])
def test_keys(key):
    assert parse_key(key) == key


@pytest.mark.parametrize("key", ["", " a", "a ", "a\nb", "a\0b", "\u00a0a", "\ud800", 5, None])
def test_no_keys(key):
    with pytest.raises(InvalidArgument, match="not a key"):
        parse_key(key)


def test_a_key_does_not_look_like_an_artifact():
    with pytest.raises(InvalidArgument, match="form of an artifact id"):
        parse_key("0123456789" * 4)
    for text in ("0123456789abcdef", "0" * 39, "0" * 41, "G" * 40):
        assert parse_key(text) == text


def test_a_key_is_measured_in_bytes():
    with pytest.raises(InvalidArgument, match="longer than"):
        parse_key("ü" * (KEY_BYTES_MAX // 2 + 1))


@pytest.mark.parametrize(
    ("key", "number"),
    [
        ("p@7", 7),
        ("p@x@12", 12),
        ("p", 0),
        ("p@", 0),
        ("p@-1", 0),
        ("p@٣", 0),
        ("p@" + "9" * 16, 0),
    ],
)
def test_the_number_of_a_version(key, number):
    assert number_of(key) == number
