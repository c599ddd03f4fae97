from __future__ import annotations

import json

import pytest

from tensorcast.client.context import Context, NodeContext, resolve_context
from tensorcast.schema.errors import InvalidArgument, NotFound, Unavailable

FILE = {
    "cluster": "home",
    "nats_url": "nats://u:p@127.0.0.1:4222",
    "home": "/data",
    "nodes": {"n1": {"socket": "/run/n1.sock"}, "n2": {"socket": "/run/n2.sock"}},
    "default_node": "n1",
}


@pytest.fixture
def environ(tmp_path):
    (tmp_path / "contexts").mkdir()
    (tmp_path / "contexts" / "home.json").write_text(json.dumps(FILE))
    (tmp_path / "contexts" / "other.json").write_text(json.dumps({**FILE, "cluster": "other"}))
    (tmp_path / "current").write_text("home\n")
    return {"TENSORCAST_CONFIG_DIR": str(tmp_path)}


def test_the_current_context_is_found(environ):
    found = resolve_context(None, None, environ)
    assert (found.cluster, found.default_node) == ("home", "n1")
    assert found.nodes["n2"] == NodeContext(socket="/run/n2.sock")


def test_the_argument_wins_over_the_environment(environ):
    environ |= {"TENSORCAST_CONTEXT": "home", "TENSORCAST_NATS_URL": "nats://elsewhere"}
    assert resolve_context("other", None, environ).cluster == "other"
    made = Context(cluster="made", nats_url="")
    assert resolve_context(made, None, environ) == made


def test_an_address_in_the_environment_wins_over_a_name(environ):
    environ |= {
        "TENSORCAST_CONTEXT": "other",
        "TENSORCAST_NATS_URL": "nats://elsewhere",
        "TENSORCAST_CLUSTER": "far",
        "TENSORCAST_SOCKET": "/run/x.sock",
        "TENSORCAST_NODE": "n7",
    }
    assert resolve_context(None, None, environ) == Context(
        cluster="far",
        nats_url="nats://elsewhere",
        nodes={"n7": NodeContext(socket="/run/x.sock")},
        default_node="n7",
    )


def test_a_name_in_the_environment_wins_over_the_current(environ):
    environ["TENSORCAST_CONTEXT"] = "other"
    assert resolve_context(None, None, environ).cluster == "other"


def test_an_address_alone_is_enough(tmp_path):
    found = resolve_context(None, None, {"TENSORCAST_NATS_URL": "nats://x"})
    assert (found.cluster, found.nodes, found.default_node) == ("default", {}, None)


def test_a_node_is_chosen(environ):
    assert resolve_context(None, "n2", environ).default_node == "n2"
    environ["TENSORCAST_NODE"] = "n2"
    assert resolve_context(None, None, environ).default_node == "n2"
    assert resolve_context(None, "n1", environ).default_node == "n1"


def test_a_node_that_is_not_here_is_told(environ):
    with pytest.raises(NotFound, match="n1, n2") as caught:
        resolve_context(None, "n3", environ)
    assert caught.value.node == "n3"


def test_without_any_context_the_way_to_one_is_told(tmp_path):
    with pytest.raises(Unavailable, match="tcctl up"):
        resolve_context(None, None, {"XDG_CONFIG_HOME": str(tmp_path)})


def test_without_a_current_context_the_home_or_the_only_one_decides(environ, tmp_path):
    (tmp_path / "current").unlink()
    with pytest.raises(Unavailable, match="TENSORCAST_CONTEXT: home, other"):
        resolve_context(None, None, environ)
    far = json.dumps({**FILE, "cluster": "far", "home": "/far"})
    (tmp_path / "contexts" / "far.json").write_text(far)
    (tmp_path / "contexts" / "broken.json").write_text("{")
    assert resolve_context(None, None, {**environ, "TENSORCAST_HOME": "/far"}).cluster == "far"
    with pytest.raises(Unavailable, match="broken, far, home, other"):
        resolve_context(None, None, {**environ, "TENSORCAST_HOME": "/nowhere"})
    for name in ("broken", "far", "home"):
        (tmp_path / "contexts" / f"{name}.json").unlink()
    assert resolve_context(None, None, environ).cluster == "other"


def test_an_empty_name_is_told(environ):
    with pytest.raises(InvalidArgument, match="name of the node is empty"):
        resolve_context(None, "", environ)
    with pytest.raises(InvalidArgument, match="name of the context is empty"):
        resolve_context("", None, environ)


@pytest.mark.parametrize("name", ["../home", "a/b", "-x", "x" * 65])
def test_a_name_is_no_path(environ, name):
    with pytest.raises(InvalidArgument, match="not the name of a context"):
        resolve_context(name, None, environ)


def test_an_unknown_name_is_told(environ):
    with pytest.raises(NotFound, match="no context 'nix'"):
        resolve_context("nix", None, environ)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"cluster": 3}'])
def test_a_broken_file_is_told(environ, tmp_path, text):
    (tmp_path / "contexts" / "home.json").write_text(text)
    with pytest.raises(InvalidArgument, match="is not a context"):
        resolve_context(None, None, environ)
