"""All processes of an engine say that they are the same one."""

from __future__ import annotations

import os

import pytest

from tensorcast.engines.identity import guess_url, identify
from tensorcast.schema.ids import parse_engine


def test_the_first_process_says_who_it_is_and_its_children_repeat_it():
    environ = {}
    first = identify("vllm", environ, ["--port", "8000", "--host", "10.0.0.1"])
    assert parse_engine(first.name) == first.name
    assert str(os.getpid()) in first.name
    assert identify("vllm", dict(environ), ["--port", "9"]) == first


def test_another_start_is_another_life():
    assert identify("vllm", {}).life != identify("vllm", {}).life


def test_an_operator_names_it():
    environ = {"TENSORCAST_ENGINE": "rollout-3", "TENSORCAST_ENGINE_URL": "http://lb:80"}
    found = identify("vllm", environ, ["--port", "8000"])
    assert (found.name, found.url) == ("rollout-3", "http://lb:80")


@pytest.mark.parametrize(
    ("arguments", "url"),
    [
        ([], ""),
        (["--port"], ""),
        (["--port", "x"], ""),
        (["--port", "8000"], "http://box:8000"),
        (["--port=8000", "--host=0.0.0.0"], "http://box:8000"),
        (["--port", "1", "--port", "2", "--host", "h"], "http://h:2"),
        (["--port", "1", "--host", "::1"], "http://[::1]:1"),
    ],
)
def test_the_arguments_of_a_server_tell_its_address(arguments, url):
    assert guess_url(arguments, "box") == url


def test_a_server_that_names_no_port_has_its_usual_one():
    assert guess_url(["--host", "h"], "box", "8000") == "http://h:8000"
    assert guess_url(["--port", "1"], "box", "8000") == "http://box:1"
