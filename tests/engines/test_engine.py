"""A real vLLM with our plugin in it serves the tiny model."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.timeout(400)]
PROMPT = "the quick brown fox jumps over the lazy dog " * 20


@pytest.fixture(scope="module")
def plain(start_engine, tiny):
    return start_engine(tiny)


def test_the_plugin_is_in_the_process_of_the_engine(plain):
    said = f"is at hand in process {plain.core_pid()} of vLLM"
    assert said in plain.log_text()


def test_what_it_generates_is_the_same_each_time_and_depends_on_the_prompt(plain):
    first = plain.generate(PROMPT, logprobs=True)
    again = plain.generate(PROMPT, logprobs=True)
    assert len(first.tokens) == len(first.logprobs) == 16
    assert first.tokens == again.tokens
    assert first.tokens != plain.generate("X" + PROMPT).tokens
    assert len(set(first.tokens)) > 8, "a model that repeats itself shows no damage"


def test_token_ids_are_as_good_as_text(plain):
    assert plain.generate(plain.token_ids(PROMPT)).tokens == plain.generate(PROMPT).tokens


def test_a_prefix_is_kept_and_counted(plain):
    before = plain.metrics()
    plain.generate("Y" + PROMPT)
    cached = plain.generate("Y" + PROMPT).cached_tokens
    assert cached >= 128
    after = plain.metrics()
    name = "vllm:prefix_cache_hits_total"
    assert after.total(name) - before.total(name) == cached
