"""Requests to servers of engines, against one that answers as it is told to."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tensorcast.engines.vllm import calls
from tensorcast.engines.vllm.calls import (
    EngineRefused,
    ask,
    decode,
    fetch,
    mark,
    parse,
    read_models,
    refusal,
)
from tensorcast.schema.errors import (
    Conflict,
    Corrupt,
    InvalidArgument,
    NotFound,
    Rejected,
    Unavailable,
)


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer()

    def do_POST(self):
        self.answer()

    def answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        status = int(self.path.strip("/").partition("?")[0] or 200)
        content = f"{self.command} {self.path} ".encode() + body
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        """Nothing is written."""


@pytest.fixture(scope="module")
def url():
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_body_is_posted_as_json(url):
    assert fetch(f"{url}/200") == b"GET /200 "
    assert ask(f"{url}/200?a=b", {"x": 1}, timeout_s=5) == b'POST /200?a=b {"x": 1}'
    assert ask(f"{url}/200", method="POST", timeout_s=5) == b"POST /200 "


def test_who_refuses_is_told_apart_from_who_is_away(url):
    with pytest.raises(EngineRefused, match="400: GET /400") as refused:
        fetch(f"{url}/400")
    assert refused.value.status == 400
    with pytest.raises(NotFound):
        fetch(f"{url}/404")
    for away in ("http://127.0.0.1:1", "nonsense", "http://[::1"):
        with pytest.raises(Unavailable) as error:
            fetch(away)
        assert not isinstance(error.value, EngineRefused)


def test_an_answer_without_end_is_refused(url, monkeypatch):
    monkeypatch.setattr(calls, "ANSWER_BYTES_MAX", 3)
    with pytest.raises(Corrupt, match="more than 3 bytes"):
        fetch(f"{url}/200")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"error": {"message": "it broke"}}', "it broke"),
        (b'{"error": "it broke"}', "it broke"),
        (b'{"detail": "it broke"}', "it broke"),
        (b"it broke", "it broke"),
        (b"[1]", r"\[1\]"),
        (b"", "500"),
    ],
)
def test_what_a_server_says_is_passed_on(content, said):
    with pytest.raises(Unavailable, match=said):
        raise refusal("http://h/x", 500, content)


def test_a_server_without_the_routes_of_developers_is_told_so():
    error = refusal("http://h/pause", 404, b'{"detail": "Not Found"}')
    assert isinstance(error, NotFound)
    assert "VLLM_SERVER_DEV_MODE" in str(error)


@pytest.mark.parametrize("content", [b"", b"\xff", b"[" * 100_000])
def test_what_is_no_json(content):
    assert parse(content) is None
    with pytest.raises(Corrupt, match="cannot be read"):
        decode(content, dict)


def test_the_models_of_a_server():
    assert read_models(b'{"data": [{"id": "a", "more": 1}, {"id": "b"}]}') == ("a", "b")
    assert read_models(b"{}") == ()
    with pytest.raises(Corrupt):
        read_models(b'{"data": 1}')


PLAIN = "Call to collective_rpc method failed: {}"
OF_A_WORKER = (
    "Call to collective_rpc method failed: Worker failed with error '{}', "
    "please check the stack trace above for the root cause"
)


@pytest.mark.parametrize("wrapped", [PLAIN, OF_A_WORKER])
def test_an_error_of_ours_comes_through_an_engine_with_its_class(wrapped):
    told = mark(InvalidArgument("They don't fit [w].", hint="Of the same model?"))
    content = json.dumps({"error": {"message": wrapped.format(told), "code": 500}}).encode()
    error = refusal("http://h/x", 500, content)
    assert isinstance(error, InvalidArgument)
    assert isinstance(error, EngineRefused)
    assert (error.status, error.code) == (500, "invalid_argument")
    assert str(error) == "http://h/x refuses: They don't fit [w]. Of the same model?"
    told = mark(Rejected("No."))
    error = refusal("u", 500, wrapped.format(told).encode())
    assert isinstance(error, Conflict)
    assert not isinstance(error, Unavailable)


@pytest.mark.parametrize("wrapped", [PLAIN, OF_A_WORKER])
def test_an_error_of_the_engine_is_told_without_its_wrapping(wrapped):
    error = refusal("u", 500, wrapped.format("start it's first.").encode())
    assert error.message == "u answers 500: start it's first."
    assert isinstance(error, Unavailable)
    assert isinstance(refusal("u", 400, b"Missing 'version'"), InvalidArgument)


def test_a_text_that_pretends_to_be_ours_is_an_error_all_the_same():
    error = refusal("u", 500, b"TensorCast [nonsense]: x [end]")
    assert error.message == "u answers 500: x"
