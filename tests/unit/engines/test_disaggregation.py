"""What a router sends to a prefill engine and then to a decode engine."""

from __future__ import annotations

import json

import pytest

from tensorcast.engines.vllm import disaggregation
from tensorcast.engines.vllm.disaggregation import only_prompt, prefill
from tensorcast.schema.errors import Unavailable

REQUEST = {
    "model": "m",
    "messages": [{"role": "user", "content": "hello"}],
    "max_completion_tokens": 9,
    "min_tokens": 3,
    "stream": True,
    "stream_options": {"include_usage": True},
    "temperature": 0.5,
}
PATH = "/v1/chat/completions"


@pytest.fixture
def asked(monkeypatch):
    """What was asked; `answer` is what comes back."""

    class Asked:
        def __init__(self):
            self.bodies, self.answer = [], b"{}"

        def ask(self, url, body, *, timeout_s):
            assert url == f"http://p:1{PATH}"
            self.bodies.append(body)
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer

    found = Asked()
    monkeypatch.setattr(disaggregation, "ask", found.ask)
    return found


def test_the_prefill_engine_gives_one_token_and_says_where_the_blocks_are(asked):
    told = {"do_remote_prefill": True, "tensorcast": {"blocks": 7}}
    asked.answer = json.dumps({"choices": [], "kv_transfer_params": told}).encode()
    assert prefill("http://p:1/", PATH, REQUEST) == {**REQUEST, "kv_transfer_params": told}
    (body,) = asked.bodies
    assert body == only_prompt(REQUEST)
    assert (body["max_tokens"], body["stream"]) == (1, False)
    assert body["kv_transfer_params"] == {"do_remote_decode": True}
    assert body["messages"] == REQUEST["messages"]
    assert not {"min_tokens", "max_completion_tokens", "stream_options"} & set(body)


@pytest.mark.parametrize(
    "answer",
    [Unavailable("It is away."), b"", b"[]", b'{"kv_transfer_params": null}', b'{"error": {}}'],
)
def test_without_an_answer_the_decode_engine_gets_the_request_as_it_was(asked, answer):
    asked.answer = answer
    assert prefill("http://p:1", PATH, REQUEST) == REQUEST
