"""Instance operations of a vLLM engine: manifest, publish, prefetch, hydrate and evict the KV of a
prompt.

An engine that runs `TensorCastConnector` is asked through requests of its own API: a request of one
token, whose `kv_transfer_params` say what is wanted (`connector/inquiries.py`). So its scheduler
stays the only one that touches its cache, and what is asked for waits its turn as any request.

    instance = await Instance.meet(client, "http://127.0.0.1:8000")
    await instance.publish(tokens)                 # its KV is in the layer now
    await other.hydrate(tokens)                    # the other engine has it now

`kv_calls.py` has plans do the same.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Annotated, Final, Self

import msgspec
from msgspec import Meta

from tensorcast.client.session import AsyncClient
from tensorcast.engines.vllm.calls import EngineRefused, ask, decode, fetch, read_models
from tensorcast.engines.vllm.connector.inquiries import OURS, PARAMETERS
from tensorcast.engines.vllm.hashing import ALGORITHM, hash_blocks
from tensorcast.schema.api_engine_blocks import EXACT
from tensorcast.schema.blocks import pack_part
from tensorcast.schema.errors import Corrupt, InvalidArgument, Rejected, Timeout
from tensorcast.schema.ids import EngineId

OPERATION_S: Final = 60.0
POLL_S: Final = 0.05
FETCHED_AT_ONCE: Final = 256
"""So many pieces of blocks are brought to a node by one call."""
REFUSED: Final = 400
"""The status of HTTP for a prompt that cannot be."""

Tokens = Sequence[int]


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The KV of a prompt: the engine's own hashes of its whole blocks, in order, in hex, and the
    space to which they belong (None: the engine does not know its weights, and shares nothing).
    `stored`: which of them the engine saw in the layer or put there."""

    space: str | None
    block_tokens: Annotated[int, Meta(ge=1)]
    hash: str
    root: str | None
    ranks: tuple[Annotated[int, Meta(ge=0)], ...]
    parts: Annotated[int, Meta(ge=1)]
    hashes: tuple[Annotated[str, Meta(min_length=2, max_length=128)], ...]
    stored: tuple[int, ...] = ()

    def keys(self) -> list[bytes]:
        """The packed keys of all blocks in the layer: for each block those of its pieces. Raises
        Rejected when nothing is shared, InvalidArgument for hashes that are none."""
        if self.space is None:
            raise Rejected(
                "The engine does not know its weights, so its KV is not shared.",
                hint="Load them with --load-format tensorcast, or name them in the connector.",
            )
        pieces = [pack_part(self.space, part, rank) for rank, part in self._pieces()]
        try:
            hashes = [bytes.fromhex(one) for one in self.hashes]
        except ValueError as error:
            raise InvalidArgument("The hashes of a manifest are not hex.") from error
        return [piece + hash_ for hash_ in hashes for piece in pieces]

    def _pieces(self) -> list[tuple[int, int]]:
        return list(product(self.ranks, range(self.parts)))

    @property
    def pieces(self) -> int:
        """How many keys a block has."""
        return len(self.ranks) * self.parts


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """`tokens` of the prompt are in the layer, in `blocks` blocks. `ticket` is for the engine that
    goes on with the request, as the `kv_transfer_params` of its own request."""

    tokens: int
    blocks: int
    manifest: Manifest
    ticket: dict[str, object]


class Prefetched(msgspec.Struct, frozen=True, kw_only=True):
    """The first `tokens` of the prompt are on the node of this machine now; all its whole blocks
    are `blocks`."""

    tokens: int
    blocks: int


class Hydrated(msgspec.Struct, frozen=True, kw_only=True):
    """The engine holds `tokens` of the prompt now. `found` of them it found in its own cache or in
    the layer (None: it does not tell); the others it computed."""

    tokens: int
    found: int | None


class Evicted(msgspec.Struct, frozen=True, kw_only=True):
    """What was dropped: `tokens` of the prompt in the engine, `layer_blocks` pieces of blocks in
    the layer."""

    tokens: int
    layer_blocks: int


class Whereabouts(msgspec.Struct, frozen=True, kw_only=True):
    """Where the KV of a prompt is: `engine_tokens` of it in the engine's own cache, as its watcher
    knows (`known`: exact, partial, silent, or `` when nobody watches), and for each block whether
    all of it is in the layer."""

    manifest: Manifest
    engine_tokens: int
    known: str
    in_layer: tuple[bool, ...]


class Instance:
    """An engine that runs, as others see it. Made by `meet`."""

    def __init__(
        self, client: AsyncClient, url: str, model: str, engine: str | None, timeout_s: float
    ) -> None:
        self.url = url
        self.model = model
        self.engine = engine
        self._client = client
        self._timeout_s = timeout_s

    @classmethod
    async def meet(
        cls,
        client: AsyncClient,
        url: str,
        *,
        engine: str | None = None,
        timeout: float = OPERATION_S,
    ) -> Self:
        """The engine whose server answers at `url`; `engine` is its name in the cluster, for what
        its watcher knows. Raises Unavailable, Corrupt."""
        url = url.rstrip("/")
        models = read_models(await asyncio.to_thread(fetch, f"{url}/v1/models"))
        if not models:
            raise Corrupt(f"{url} serves no model.")
        return cls(client, url, models[0], engine, timeout)

    # ---- operations ----------------------------------------------------------------------------

    async def manifest(self, tokens: Tokens) -> Manifest:
        """What the blocks of a prompt are called. Nothing is computed when the engine hashes with
        `sha256_cbor`; else the engine is asked, which computes what it does not have. Raises
        Unavailable, Rejected when it runs no TensorCastConnector."""
        return await self._name(tokens)

    async def locate(self, tokens: Tokens) -> Whereabouts:
        """Where the KV of a prompt is, in the engine and in the layer."""
        manifest = await self.manifest(tokens)
        held, known = await self._ask_watcher(tokens)
        in_layer = await self._look(manifest)
        return Whereabouts(manifest=manifest, engine_tokens=held, known=known, in_layer=in_layer)

    async def publish(self, tokens: Tokens, *, timeout: float | None = None) -> Published:
        """Puts the KV of a prompt into the layer; what the engine does not hold it computes first.
        Returns when all of it is there. Raises Timeout, Rejected, Unavailable."""
        limit_s = self._timeout_s if timeout is None else timeout
        deadline = asyncio.get_running_loop().time() + limit_s
        answer = await self._run(tokens, manifest=True, hand_over=True)
        whole = len(tokens) // answer.manifest().block_tokens
        manifest = answer.manifest()
        manifest = msgspec.structs.replace(manifest, hashes=manifest.hashes[:whole])
        while not all(await self._look(manifest)):
            if asyncio.get_running_loop().time() > deadline:
                raise Timeout(
                    f"The KV of the prompt is not in the layer after {limit_s:g} s.",
                    hint="Does the engine save (`kv_role`), and has its node room?",
                )
            await asyncio.sleep(POLL_S)
        return Published(
            tokens=whole * manifest.block_tokens,
            blocks=whole,
            manifest=manifest,
            ticket=_make_ticket(answer.parameters, whole),
        )

    async def prefetch(
        self,
        tokens: Tokens,
        *,
        ticket: Mapping[str, object] | None = None,
        manifest: Manifest | None = None,
    ) -> Prefetched:
        """Brings the KV of a prompt from other nodes to the node of this machine; the engine is not
        touched. `ticket` is that of `publish`: its node is asked for what nobody else is known to
        have. Raises as `manifest`, which is asked where none is given."""
        manifest = manifest or await self.manifest(tokens)
        keys, node = manifest.keys(), _read_node(ticket)
        for start in range(0, len(keys), FETCHED_AT_ONCE):
            lacking = await self._bring(keys[start : start + FETCHED_AT_ONCE], None)
            if lacking and node not in (None, self._client.context.default_node):
                await self._bring(lacking, node)
        is_here = await self._client.exists(keys, anywhere=False) if keys else []
        whole = _count_leading(manifest, is_here)
        return Prefetched(tokens=whole * manifest.block_tokens, blocks=len(manifest.hashes))

    async def hydrate(
        self,
        tokens: Tokens,
        *,
        ticket: Mapping[str, object] | None = None,
        manifest: Manifest | None = None,
    ) -> Hydrated:
        """Brings the KV of a prompt that is in the layer into the engine's own cache, as far as it
        is there without a gap; what is not there is not computed, but for the last token. `ticket`
        is that of `publish`, for a layer that has not heard of it yet; `manifest` spares naming
        the blocks. Raises as `manifest`, and Rejected for blocks of another space."""
        if manifest is None:
            manifest = await self.manifest(tokens)
        elif manifest.space != (space := (await self._ask_form()).space):
            raise Rejected(
                f"The KV belongs to space {manifest.space}, and the engine to {space}.",
                hint="Weights, dtype, layout and version of the engine must be the same.",
            )
        blocks = _count_leading(manifest, await self._look_up(manifest))
        promised = _read_ticket(ticket)
        count = min(max(blocks, promised), len(manifest.hashes)) * manifest.block_tokens
        if not count:
            return Hydrated(tokens=0, found=0)
        # One token more, or the last block would be computed anew.
        rest = tokens[count : count + 1] or tokens[:1]
        answer = await self._run((*tokens[:count], *rest), parameters=ticket)
        return Hydrated(tokens=count, found=answer.cached_tokens())

    async def evict(
        self,
        tokens: Tokens,
        *,
        engine: bool = True,
        layer: bool = False,
        manifest: Manifest | None = None,
    ) -> Evicted:
        """Drops the KV of a prompt from the engine's own cache, and with `layer` from the node of
        this machine too. What others share of it goes with it. Raises as `manifest`, which is asked
        where none is given."""
        dropped = pieces = 0
        if layer and manifest is None:
            manifest = await self._name(tokens, apart=True)
        if engine:
            held, known = await self._ask_watcher(tokens)
            # Of a prompt that it does not hold the engine would first compute everything.
            part = tokens[:held] if known == EXACT else tokens
            if part:  # one token more, or the last block would be computed anew beside the old one
                await self._run((*part, part[0]), evict=True, apart=True)
            dropped = len(part)
        if layer and manifest is not None:
            pieces = await self._client.evict_blocks(manifest.keys())
        return Evicted(tokens=dropped, layer_blocks=pieces)

    # ---- asking --------------------------------------------------------------------------------

    async def _name(self, tokens: Tokens, *, apart: bool = False) -> Manifest:
        """The manifest of a prompt; `apart`: nothing is loaded or saved for it."""
        form = await self._ask_form()
        if form.hash == ALGORITHM and form.root is not None:
            root = bytes.fromhex(form.root)
            hashes = hash_blocks(tokens, form.block_tokens, root=root)
            return msgspec.structs.replace(form, hashes=tuple(one.hex() for one in hashes))
        return (await self._run(tokens, manifest=True, apart=apart)).manifest()

    async def _ask_form(self) -> Manifest:
        """How the engine names blocks, found out by a prompt of one token."""
        form = (await self._run((1,), manifest=True)).manifest()
        return msgspec.structs.replace(form, hashes=(), stored=())

    async def tokenize(self, text: str) -> tuple[int, ...]:
        """The tokens of a prompt of text. Raises as `ask`."""
        return await self._tokenize({"prompt": text})

    async def tokenize_chat(self, messages: Sequence[Mapping[str, object]]) -> tuple[int, ...]:
        """The tokens of the prompt that a chat begins with. Raises as `ask`."""
        return await self._tokenize({"messages": list(messages)})

    async def _tokenize(self, said: dict[str, object]) -> tuple[int, ...]:
        body = {"model": self.model, **said}
        page = await asyncio.to_thread(ask, f"{self.url}/tokenize", body, timeout_s=self._timeout_s)
        return decode(page, _Tokenized).tokens

    async def _look(self, manifest: Manifest) -> tuple[bool, ...]:
        """Which blocks are in the layer, all their pieces."""
        return _whole_blocks(manifest, await self._look_up(manifest))

    async def _look_up(self, manifest: Manifest) -> list[bool]:
        """Which pieces are in the layer."""
        return await self._client.exists(manifest.keys()) if manifest.hashes else []

    async def _bring(self, keys: list[bytes], node: str | None) -> list[bytes]:
        """Brings blocks to this machine's node, from whoever is known to have them or from one
        node; those that were not there."""
        found = await self._client.get_blocks(keys, adopt=True, node=node)
        return [key for key, view in zip(keys, found, strict=True) if view is None]

    async def _ask_watcher(self, tokens: Tokens) -> tuple[int, str]:
        """How many tokens of a prompt the engine holds, and how well that is known."""
        if self.engine is None:
            return 0, ""
        states = {one.engine: one.state for one in await self._client.api.engine_views()}
        for one in await self._client.api.holders(tokens):
            if one.engine == self.engine:
                return one.tokens, one.state
        return 0, states.get(EngineId(self.engine), "")

    async def _run(
        self,
        tokens: Tokens,
        *,
        manifest: bool = False,
        evict: bool = False,
        apart: bool = False,
        hand_over: bool = False,
        parameters: Mapping[str, object] | None = None,
    ) -> _Answer:
        """A request of one token. Raises Unavailable, InvalidArgument for a prompt that the engine
        does not take, Corrupt."""
        said = _ask_for(parameters, manifest=manifest, evict=evict, apart=apart)
        if hand_over:
            said["do_remote_decode"] = True
        body = {
            "model": self.model,
            "prompt": list(tokens),
            "max_tokens": 1,
            "temperature": 0,
            PARAMETERS: said,
        }
        url = f"{self.url}/v1/completions"
        try:
            page = await asyncio.to_thread(ask, url, body, timeout_s=self._timeout_s)
        except EngineRefused as error:
            if error.status == REFUSED:
                raise InvalidArgument(f"The engine refuses the prompt: {error.message}") from error
            raise
        return decode(page, _Answer)


def _whole_blocks(manifest: Manifest, pieces: Sequence[bool]) -> tuple[bool, ...]:
    each = manifest.pieces
    return tuple(all(pieces[at : at + each]) for at in range(0, len(pieces), each))


def _count_leading(manifest: Manifest, pieces: Sequence[bool]) -> int:
    """How many blocks are there before the first that is not."""
    whole = _whole_blocks(manifest, pieces)
    return whole.index(False) if False in whole else len(whole)


def read_manifest(response: Mapping[str, object]) -> Manifest:
    """The manifest in the response to a request that asked for it, with `kv_transfer_params:
    {"tensorcast": {"manifest": true}}`: that of the request's own KV. Raises Rejected, Corrupt."""
    return decode(json.dumps(response), _Answer).manifest()


class _Tokenized(msgspec.Struct, frozen=True):
    tokens: tuple[int, ...]


class _Details(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct, frozen=True):
    prompt_tokens_details: _Details | None = None


class _Answer(msgspec.Struct, frozen=True):
    """A completion, as far as it is of interest."""

    usage: _Usage | None = None
    kv_transfer_params: dict[str, object] | None = None

    @property
    def parameters(self) -> dict[str, object]:
        return self.kv_transfer_params or {}

    def cached_tokens(self) -> int | None:
        """How many tokens of the prompt were not computed, if the engine tells
        (`--enable-prompt-tokens-details`)."""
        details = self.usage.prompt_tokens_details if self.usage is not None else None
        return details.cached_tokens if details is not None else None

    def manifest(self) -> Manifest:
        """Raises Rejected when there is none, Corrupt."""
        ours = self.parameters.get(OURS)
        if not isinstance(ours, dict) or "hashes" not in ours:
            raise Rejected(
                "The engine says nothing of its KV blocks.",
                hint="Start it with TensorCastConnector in --kv-transfer-config.",
            )
        try:
            return msgspec.convert(ours, Manifest)
        except msgspec.ValidationError as error:
            raise Corrupt(f"The manifest of an engine cannot be read: {error}.") from error


def _ask_for(parameters: Mapping[str, object] | None, **wanted: bool) -> dict[str, object]:
    """What a request says to connectors: `parameters`, and what is wanted of ours."""
    said = dict(parameters or {})
    ours = said.get(OURS)
    said[OURS] = {**(ours if isinstance(ours, dict) else {}), **wanted}
    return said


def _make_ticket(parameters: Mapping[str, object], blocks: int) -> dict[str, object]:
    """What the next engine is told: where the blocks are, and nothing of the manifest."""
    ours = parameters.get(OURS)
    said = ours if isinstance(ours, dict) else {}
    place = {name: said[name] for name in ("space", "node") if name in said}
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        OURS: {**place, "blocks": blocks},
    }


def _read_node(ticket: Mapping[str, object] | None) -> str | None:
    ours = (ticket or {}).get(OURS)
    node = ours.get("node") if isinstance(ours, dict) else None
    return node if isinstance(node, str) else None


def _read_ticket(ticket: Mapping[str, object] | None) -> int:
    ours = (ticket or {}).get(OURS)
    blocks = ours.get("blocks") if isinstance(ours, dict) else 0
    return blocks if isinstance(blocks, int) and blocks > 0 else 0
