"""The calls about the KV of prompts, against a pretended engine."""

from __future__ import annotations

import msgspec
import pytest

from tensorcast.engines.vllm import kv_calls
from tensorcast.engines.vllm.kv_artifacts import Prompt
from tensorcast.engines.vllm.kv_calls import KvCalls
from tensorcast.engines.vllm.operations import (
    Evicted,
    Hydrated,
    Manifest,
    Prefetched,
    Published,
    Whereabouts,
)
from tensorcast.schema.errors import InvalidArgument

NAMED = Manifest(
    space="s", block_tokens=2, hash="h", root=None, ranks=(0,), parts=1, hashes=("aa" * 8,)
)
TICKET = {"tensorcast": {"node": "n1"}}


class Engine:
    """Writes down what it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple] = []

    async def tokenize(self, text):
        return tuple(text.encode())

    async def tokenize_chat(self, messages):
        return (len(messages),)

    async def manifest(self, tokens):
        self.asked.append(("manifest", tokens))
        return NAMED

    async def locate(self, tokens):
        return Whereabouts(manifest=NAMED, engine_tokens=2, known="exact", in_layer=(True, False))

    async def publish(self, tokens, *, timeout):
        self.asked.append(("publish", tokens, timeout))
        return Published(tokens=2, blocks=1, manifest=NAMED, ticket=TICKET)

    async def prefetch(self, tokens, *, ticket, manifest):
        self.asked.append(("prefetch", tokens, ticket, manifest))
        return Prefetched(tokens=2, blocks=1)

    async def hydrate(self, tokens, *, ticket, manifest):
        self.asked.append(("hydrate", tokens, ticket, manifest))
        return Hydrated(tokens=2, found=2)

    async def evict(self, tokens, *, engine, layer, manifest):
        self.asked.append(("evict", tokens, engine, layer, manifest))
        return Evicted(tokens=2, layer_blocks=3)


@pytest.fixture
def engine(monkeypatch):
    engine = Engine()

    async def meet(client, url, *, engine):
        assert (client, url, engine) == ("client", "http://e", "e1")
        return fake

    async def of_artifact(client, artifact):
        fake.asked.append(("artifact", artifact))
        return Prompt((1, 2), NAMED)

    async def restore(client, artifact):
        fake.asked.append(("restore", artifact))
        return Prompt((1, 2), NAMED)

    async def seal(client, tokens, manifest):
        fake.asked.append(("seal", tokens, manifest))
        return "artifact-id"

    fake = engine
    monkeypatch.setattr(kv_calls.Instance, "meet", meet)
    monkeypatch.setattr(kv_calls, "read_prompt", of_artifact)
    monkeypatch.setattr(kv_calls, "restore_blocks", restore)
    monkeypatch.setattr(kv_calls, "seal_prompt", seal)
    return engine


@pytest.fixture
def verbs(engine):
    return KvCalls("client", "e1", "http://e").verbs


@pytest.mark.parametrize(
    ("said", "tokens"),
    [
        ({"prompt": "ab"}, (97, 98)),
        ({"prompt": [3, 4]}, (3, 4)),
        ({"messages": [{"role": "user", "content": "hi"}]}, (1,)),
    ],
)
async def test_a_prompt_is_named_in_each_way(verbs, engine, said, tokens):
    found = await verbs["manifest"](said)
    assert found == {"manifest": msgspec.to_builtins(NAMED), "tokens": len(tokens), "blocks": 1}
    assert engine.asked == [("manifest", tokens)]


@pytest.mark.parametrize(
    "said",
    [
        {},
        {"prompt": "a", "artifact": "x"},
        {"prompt": [-1]},
        {"prompt": 1},
        {"prompt": "a", "other": 1},
        {"prompt": "a", "timeout_s": 0},
    ],
)
async def test_what_makes_no_sense_is_refused(verbs, engine, said):
    for verb in verbs.values():
        with pytest.raises(InvalidArgument):
            await verb(said)
    assert not engine.asked


async def test_publish_gives_what_the_next_step_needs(verbs, engine):
    found = await verbs["publish"]({"prompt": [1, 2, 3], "timeout_s": 5})
    assert found == {"tokens": 2, "blocks": 1, "ticket": TICKET}
    found = await verbs["publish"]({"prompt": [1, 2, 3], "as_artifact": True})
    assert found["artifact"] == "artifact-id"
    assert engine.asked == [
        ("publish", (1, 2, 3), 5.0),
        ("publish", (1, 2, 3), None),
        ("seal", (1, 2, 3), NAMED),
    ]


async def test_prefetch_and_hydrate_go_on_from_a_ticket(verbs, engine):
    said = {"prompt": [1, 2], "ticket": TICKET}
    assert await verbs["prefetch"](said) == {"tokens": 2, "blocks": 1}
    assert await verbs["hydrate"](said) == {"tokens": 2, "found": 2}
    assert engine.asked == [
        ("prefetch", (1, 2), TICKET, None),
        ("hydrate", (1, 2), TICKET, None),
    ]


async def test_hydrate_goes_on_from_an_artifact(verbs, engine):
    assert await verbs["hydrate"]({"artifact": "x"}) == {"tokens": 2, "found": 2}
    assert engine.asked == [("restore", "x"), ("hydrate", (1, 2), None, NAMED)]


async def test_the_rest(verbs, engine):
    found = await verbs["locate"]({"artifact": "x"})
    assert found == {"tokens": 2, "known": "exact", "blocks": 2, "blocks_in_layer": 1}
    found = await verbs["evict"]({"artifact": "x", "layer": True})
    assert found == {"tokens": 2, "layer_blocks": 3}
    assert engine.asked[1:] == [("artifact", "x"), ("evict", (1, 2), True, True, NAMED)]
