import pytest

from tensorcast.engines.vllm.connector.inquiries import (
    Inquiry,
    Naming,
    make_manifest,
    read_inquiry,
    with_manifest,
)

NAMING = Naming(16, "sha256_cbor", b"r" * 32)


@pytest.mark.parametrize(
    ("said", "inquiry"),
    [
        (None, Inquiry()),
        ({}, Inquiry()),
        ({"tensorcast": None}, Inquiry()),
        ({"tensorcast": ["manifest"]}, Inquiry()),
        ({"tensorcast": {"manifest": "yes", "evict": 1}}, Inquiry()),
        ({"tensorcast": {"manifest": True}}, Inquiry(manifest=True)),
        ({"tensorcast": {"evict": True, "blocks": 3}}, Inquiry(evict=True)),
        ({"tensorcast": {"apart": True, "evict": 1}}, Inquiry(apart=True)),
    ],
)
def test_what_a_request_asks(said, inquiry):
    assert read_inquiry(said) == inquiry


def test_a_manifest_names_the_blocks():
    found = make_manifest(NAMING, "space", [0, 1], 2, [b"a", b"b"], {1, 0, 7})
    assert found["hashes"] == ["61", "62"]
    assert found["stored"] == [0, 1]
    assert (found["space"], found["ranks"], found["parts"]) == ("space", [0, 1], 2)
    assert (found["hash"], found["root"]) == ("sha256_cbor", "72" * 32)


def test_a_root_that_is_a_secret_is_not_told():
    secret = Naming(16, "xxhash", b"r" * 16)
    assert make_manifest(secret, None, [0], 1, [], ())["root"] is None


def test_a_manifest_goes_beside_what_is_said_already():
    told = {"do_remote_prefill": True, "tensorcast": {"blocks": 3, "space": "old"}}
    assert with_manifest(told, {"space": "new"}) == {
        "do_remote_prefill": True,
        "tensorcast": {"blocks": 3, "space": "new"},
    }
    assert with_manifest(None, {"a": 1}) == {"tensorcast": {"a": 1}}
