"""URLs of stores, and what their errors mean. The stores themselves: tests/integration."""

from __future__ import annotations

import pytest
from obstore import exceptions

from tensorcast.schema.errors import (
    Corrupt,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    Unavailable,
)
from tensorcast.storage.objects import Place, explain, is_url, parse_url


@pytest.mark.parametrize(
    ("text", "root", "path"),
    [
        ("s3://bucket", "s3://bucket", ""),
        ("s3://bucket/", "s3://bucket", ""),
        ("s3://bucket/a/b.safetensors", "s3://bucket", "a/b.safetensors"),
        ("gs://bucket/folder/", "gs://bucket", "folder"),
        ("az://container/x", "az://container", "x"),
        ("https://host:8443/a%20b/x?sign=1", "https://host:8443", "a b/x"),
    ],
)
def test_a_url_names_a_store_and_a_path(text, root, path):
    assert parse_url(text) == Place(root, path)
    assert is_url(text)


@pytest.mark.parametrize("text", ["ftp://host/x", "s3:///x", "no url", "s3://"])
def test_what_is_no_url_of_a_store_is_refused(text):
    with pytest.raises(InvalidArgument):
        parse_url(text)


@pytest.mark.parametrize("value", ["a/b", "/a/b", "", "C:\\x", None, 3])
def test_paths_are_no_urls(value):
    assert not is_url(value)


def test_places_have_names():
    place = Place("s3://bucket", "a/b.safetensors")
    assert (place.name, place.suffix, str(place)) == (
        "b.safetensors",
        ".safetensors",
        "s3://bucket/a/b.safetensors",
    )
    assert Place("s3://bucket", "").child("x").path == "x"
    assert Place("s3://bucket", "a").child("x").path == "a/x"
    assert Place("s3://bucket", "a/.hidden").suffix == ""


@pytest.mark.parametrize(
    ("error", "kind", "told"),
    [
        (FileNotFoundError("x"), NotFound, "There is no object s3://bucket/x."),
        (FileNotFoundError("<Code>NoSuchBucket</Code>"), NotFound, "no bucket s3://bucket."),
        (exceptions.PermissionDeniedError("x"), PermissionDenied, "refuses access"),
        (exceptions.UnauthenticatedError("x"), PermissionDenied, "refuses access"),
        (exceptions.PreconditionError("x"), Corrupt, "changed while it was read"),
        (exceptions.GenericError("no credentials found"), PermissionDenied, "no credentials"),
        (exceptions.GenericError("HTTP error\nmore"), Unavailable, "reached: HTTP error"),
        (exceptions.GenericError("x" * 999), Unavailable, "xxx..."),
        (exceptions.InvalidPathError("bad"), InvalidArgument, "cannot be used: bad"),
        (exceptions.UnknownConfigurationKeyError("k"), InvalidArgument, "settings"),
    ],
)
def test_errors_say_what_to_do(error, kind, told):
    found = explain(error, Place("s3://bucket", "x"))
    assert isinstance(found, kind)
    assert told in found.message
    assert found.hint or kind is InvalidArgument
