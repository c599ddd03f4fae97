"""Instance operations against a pretended engine and a pretended cluster."""

from __future__ import annotations

import json

import pytest

from tensorcast.engines.vllm import operations
from tensorcast.engines.vllm.hashing import hash_blocks, root_hash
from tensorcast.engines.vllm.operations import Instance, Manifest, read_manifest
from tensorcast.schema.api_engine_blocks import PrefixHolder
from tensorcast.schema.blocks import pack_keys
from tensorcast.schema.errors import Corrupt, Rejected, Timeout
from tensorcast.schema.ids import EngineId

TOKENS = tuple(range(10, 20))
SIZE = 4
HASHES = hash_blocks(TOKENS, SIZE, root=root_hash())
SPACE = "vllm:tiny:1"
KEYS = pack_keys(SPACE, HASHES)


class Engine:
    """Answers requests as vLLM with the connector does; `posted` are their bodies."""

    def __init__(self) -> None:
        self.posted: list[dict] = []
        self.hash = "sha256_cbor"
        self.space: str | None = SPACE
        self.has_connector = True
        self.cached: int | None = 8

    def fetch(self, url):
        assert url == "http://e/v1/models"
        return json.dumps({"object": "list", "data": [{"id": "tiny"}]})

    def post(self, url, body, timeout_s):
        if url == "http://e/tokenize":
            assert body["model"] == "tiny"
            return json.dumps({"tokens": [len(body.get("prompt", body.get("messages")))]})
        assert url == "http://e/v1/completions"
        assert (body["model"], body["max_tokens"]) == ("tiny", 1)
        self.posted.append(body)
        details = {"prompt_tokens_details": {"cached_tokens": self.cached}}
        answer = {"usage": details if self.cached is not None else {}}
        if self.has_connector:
            answer["kv_transfer_params"] = self._told(body)
        return json.dumps(answer)

    def _told(self, body):
        said = body["kv_transfer_params"]
        ours = (
            {"space": self.space, "blocks": 2, "node": "n1"} if "do_remote_decode" in said else {}
        )
        if said["tensorcast"]["manifest"]:
            hashes = hash_blocks(body["prompt"], SIZE, root=root_hash())
            ours |= {"space": self.space, "block_tokens": SIZE, "hash": self.hash, "ranks": [0]}
            ours |= {"root": root_hash().hex(), "parts": 1, "hashes": [h.hex() for h in hashes]}
        return {"tensorcast": ours}

    @property
    def prompts(self):
        return [tuple(body["prompt"]) for body in self.posted]


class Client:
    """The layer: which keys are there, after how many looks; what a watcher knows."""

    def __init__(self) -> None:
        self.api = self
        self.there: set[bytes] = set()
        self.later: list[set[bytes]] = []
        self.evicted: list[bytes] = []
        self.held: tuple[PrefixHolder, ...] = ()
        self.nodes: dict[str | None, set[bytes]] = {}
        self.context = self
        self.default_node = "n2"

    async def get_blocks(self, keys, *, adopt, node):
        assert adopt
        has = self.nodes.get(node, set())
        self.there |= has & set(keys)
        return [b"view" if key in has | self.there else None for key in keys]

    async def exists(self, keys, *, anywhere=True):
        if self.later:
            self.there |= self.later.pop(0)
        return [key in self.there for key in keys]

    async def evict_blocks(self, keys):
        self.evicted += keys
        return len(self.there & set(keys))

    async def engine_views(self):
        return ()

    async def holders(self, tokens):
        return self.held


def held(tokens: int, state: str = "exact", engine: str = "e1") -> PrefixHolder:
    return PrefixHolder(
        engine=EngineId(engine),
        tokens=tokens,
        blocks=tokens // SIZE,
        block_tokens=SIZE,
        media={"gpu": tokens // SIZE},
        state=state,
        reason="",
    )


@pytest.fixture
def engine(monkeypatch):
    engine = Engine()
    monkeypatch.setattr(operations, "fetch", engine.fetch)
    monkeypatch.setattr(operations, "ask", engine.post)
    monkeypatch.setattr(operations, "POLL_S", 0.001)
    return engine


@pytest.fixture
def client():
    return Client()


@pytest.fixture
async def instance(engine, client):
    return await Instance.meet(client, "http://e/", engine="e1")


async def test_a_manifest_costs_the_engine_one_token(instance, engine):
    manifest = await instance.manifest(TOKENS)
    assert manifest.keys() == KEYS
    assert engine.prompts == [(1,)]


async def test_other_hashes_are_asked_of_the_engine(instance, engine):
    engine.hash = "sha256"
    assert (await instance.manifest(TOKENS)).keys() == KEYS
    assert engine.prompts == [(1,), TOKENS]


async def test_the_parts_of_a_block_have_a_key_each():
    manifest = Manifest(
        space="s", block_tokens=4, hash="h", root=None, ranks=(0, 1), parts=2, hashes=("aa" * 8,)
    )
    assert len(set(manifest.keys())) == manifest.pieces == 4


async def test_publish_waits_until_the_layer_has_all(instance, engine, client):
    client.later = [set(), {KEYS[0]}, {KEYS[1]}]
    done = await instance.publish(TOKENS)
    assert (done.tokens, done.blocks, done.manifest.keys()) == (8, 2, KEYS)
    assert engine.prompts == [TOKENS]
    assert done.ticket == {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "tensorcast": {"space": SPACE, "node": "n1", "blocks": 2},
    }


async def test_publish_has_an_end(instance, client):
    client.there = {KEYS[0]}
    with pytest.raises(Timeout, match="not in the layer"):
        await instance.publish(TOKENS, timeout=0.02)


async def test_hydrate_asks_only_for_what_the_layer_has(instance, engine, client):
    client.there = {KEYS[0]}
    done = await instance.hydrate(TOKENS)
    assert (done.tokens, done.found) == (4, 8)
    assert engine.prompts == [(1,), TOKENS[:5]]
    client.there = {KEYS[1]}
    assert (await instance.hydrate(TOKENS)).tokens == 0
    assert engine.prompts[2:] == [(1,)], "without its beginning the rest is of no use"


async def test_hydrate_believes_a_ticket(instance, engine):
    ticket = {"do_remote_prefill": True, "tensorcast": {"blocks": 99, "node": "n1"}}
    engine.cached = None
    done = await instance.hydrate(TOKENS, ticket=ticket)
    assert (done.tokens, done.found) == (8, None)
    said = engine.posted[-1]["kv_transfer_params"]
    assert said["do_remote_prefill"]
    assert said["tensorcast"] == {
        "blocks": 99,
        "node": "n1",
        "manifest": False,
        "evict": False,
        "apart": False,
    }


async def test_a_prompt_of_whole_blocks_is_hydrated_whole(instance, engine):
    ticket = {"tensorcast": {"blocks": 2}}
    assert (await instance.hydrate(TOKENS[:8], ticket=ticket)).tokens == 8
    assert engine.prompts[-1] == (*TOKENS[:8], TOKENS[0])


async def test_hydrate_takes_a_manifest_of_its_own_space_only(instance, engine):
    named = await instance.manifest(TOKENS)
    done = await instance.hydrate(TOKENS, manifest=named, ticket={"tensorcast": {"blocks": 2}})
    assert done.tokens == 8
    engine.space = "vllm:tiny:2"
    with pytest.raises(Rejected, match="belongs to space vllm:tiny:1"):
        await instance.hydrate(TOKENS, manifest=named)


async def test_prefetch_asks_the_node_of_a_ticket_for_what_nobody_is_known_to_have(
    instance, engine, client
):
    client.nodes = {None: {KEYS[0]}, "n1": {KEYS[1]}}
    assert (await instance.prefetch(TOKENS)).tokens == 4
    ticket = {"tensorcast": {"blocks": 2, "node": "n1"}}
    done = await instance.prefetch(TOKENS, ticket=ticket)
    assert (done.tokens, done.blocks) == (8, 2)
    assert engine.prompts == [(1,), (1,)], "the engine is not touched"


async def test_prefetch_from_where_it_is(instance, client):
    client.nodes = {"n2": set(KEYS)}
    ticket = {"tensorcast": {"blocks": 2, "node": "n2"}}
    assert (await instance.prefetch(TOKENS, ticket=ticket)).tokens == 0


async def test_evict_takes_what_the_engine_holds(instance, engine, client):
    client.held = (held(4, engine="other"), held(4))
    done = await instance.evict(TOKENS)
    assert (done.tokens, done.layer_blocks) == (4, 0)
    assert engine.prompts == [(*TOKENS[:4], TOKENS[0])]
    said = engine.posted[0]["kv_transfer_params"]["tensorcast"]
    assert (said["evict"], said["apart"]) == (True, True)
    assert client.evicted == []


async def test_evict_of_an_engine_that_nobody_knows_takes_all(instance, engine, client):
    client.held = (held(4, "partial"),)
    assert (await instance.evict(TOKENS)).tokens == len(TOKENS)
    assert engine.prompts == [(*TOKENS, TOKENS[0])]


async def test_evict_from_the_layer_alone(instance, engine, client):
    client.there = set(KEYS)
    done = await instance.evict(TOKENS, engine=False, layer=True)
    assert (done.tokens, done.layer_blocks) == (0, 2)
    assert client.evicted == KEYS
    assert engine.prompts == [(1,)]


async def test_evict_by_a_manifest_asks_nobody(instance, engine, client):
    named = await instance.manifest(TOKENS)
    client.there = set(KEYS)
    done = await instance.evict(TOKENS, engine=False, layer=True, manifest=named)
    assert (done.layer_blocks, engine.prompts) == (2, [(1,)])


async def test_where_it_is(instance, client):
    client.there, client.held = {KEYS[1]}, (held(4),)
    found = await instance.locate(TOKENS)
    assert (found.engine_tokens, found.known, found.in_layer) == (4, "exact", (False, True))


async def test_an_engine_without_the_connector_is_told(instance, engine):
    engine.has_connector = False
    with pytest.raises(Rejected, match="says nothing"):
        await instance.manifest(TOKENS)


async def test_an_engine_that_shares_nothing_is_told(instance, engine):
    engine.space = None
    with pytest.raises(Rejected, match="does not know its weights"):
        await instance.hydrate(TOKENS)


@pytest.mark.parametrize(
    "ours",
    [
        {"hashes": 1},
        {"hashes": [], "block_tokens": 0, "space": None, "hash": "", "root": None, "ranks": []},
    ],
)
def test_a_manifest_that_is_none(ours):
    with pytest.raises(Corrupt):
        read_manifest({"kv_transfer_params": {"tensorcast": ours}})
    with pytest.raises(Rejected):
        read_manifest({"kv_transfer_params": None})


async def test_texts_and_chats_become_tokens(instance):
    assert await instance.tokenize("four") == (4,)
    assert await instance.tokenize_chat([{"role": "user", "content": "hi"}]) == (1,)
