from __future__ import annotations

from types import SimpleNamespace

import pytest

from cli_samples import artifact
from samples import artifact_id
from tensorcast.client.context import Context
from tensorcast.client.handles import AsyncArtifact
from tensorcast.client.naming import check_timeout, name_of, view_of
from tensorcast.client.portal import Portal
from tensorcast.client.publishing import take_in
from tensorcast.client.session import connect_async, select
from tensorcast.client.sync import Artifact
from tensorcast.schema.errors import InvalidArgument
from tensorcast.schema.tensors import TensorSpec
from tensorcast.schema.views import View

A = artifact_id("a")
INDEX = (TensorSpec(name="base", dtype="U8", shape=(4,), offset=0),)


def handle() -> AsyncArtifact:
    return AsyncArtifact(None, A, "weights", {}, INDEX)  # type: ignore[arg-type]  # asks nothing


def test_text_and_artifacts_name_an_artifact():
    assert name_of("key@1") == "key@1"
    assert name_of(handle()) == A
    assert name_of(Artifact(Portal(), handle())) == A
    assert name_of(artifact(id=A)) == A


@pytest.mark.parametrize("what", [None, 5, b"key", SimpleNamespace(id="op-1"), ["a"]])
def test_nothing_else_does(what):
    with pytest.raises(InvalidArgument, match=f"{type(what).__name__} does not name an artifact"):
        name_of(what)


def test_views():
    assert view_of(None) == View()
    assert view_of(View.tensors("a")) == View.tensors("a")
    with pytest.raises(InvalidArgument, match="A str is not a view"):
        view_of("names=a")


def test_one_name_may_be_given_alone():
    assert [found.spec.name for found in select("base", None, INDEX)] == ["base"]


@pytest.mark.parametrize("contents", [None, 5, b"path", object()])
def test_what_cannot_be_put_is_told(contents):
    with pytest.raises(InvalidArgument, match="cannot be put"), take_in(contents):
        pass


@pytest.mark.parametrize("timeout", [-1, -0.5, float("nan"), "1", True])
def test_what_is_no_timeout_is_told(timeout):
    with pytest.raises(InvalidArgument, match="The timeout is"):
        check_timeout(timeout)
    with pytest.raises(InvalidArgument, match="The timeout is"):
        connect_async(Context(cluster="c", nats_url=""), timeout=timeout)


def test_seconds_and_none_are_timeouts():
    for timeout in (None, 0, 2.5, float("inf")):
        check_timeout(timeout)
