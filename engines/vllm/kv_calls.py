"""What plans may ask of an engine about the KV of a prompt: the instance operations as calls.

Each names its prompt in one of these ways: `prompt` (a text, or token ids), `messages` (of a chat),
or `artifact` (what `publish` has made of it).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from msgspec import Meta

from tensorcast.engines.vllm.kv_artifacts import (
    Prompt,
    read_prompt,
    restore_blocks,
    seal_prompt,
)
from tensorcast.engines.vllm.operations import Instance
from tensorcast.engines.vllm.verbs import Outputs, Verb, read
from tensorcast.schema.errors import InvalidArgument

if TYPE_CHECKING:
    from tensorcast.client.session import AsyncClient

Tokens = tuple[Annotated[int, Meta(ge=0)], ...]


class _Named(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which prompt."""

    prompt: str | Tokens | None = None
    messages: tuple[dict[str, object], ...] | None = None
    artifact: str | None = None


class _Publish(_Named, frozen=True, kw_only=True):
    as_artifact: bool = False
    timeout_s: Annotated[float, Meta(gt=0)] | None = None


class _Bring(_Named, frozen=True, kw_only=True):
    ticket: dict[str, object] | None = None


class _Evict(_Named, frozen=True, kw_only=True):
    engine: bool = True
    layer: bool = False


class KvCalls:
    """The verbs of one engine."""

    def __init__(self, client: AsyncClient, engine: str, url: str) -> None:
        self._client = client
        self._engine = engine
        self._url = url
        self.verbs: Final[Mapping[str, Verb]] = {
            "manifest": self.manifest,
            "locate": self.locate,
            "publish": self.publish,
            "prefetch": self.prefetch,
            "hydrate": self.hydrate,
            "evict": self.evict,
        }

    async def manifest(self, said: object) -> Outputs:
        """`manifest`, and how many `tokens` and whole `blocks` the prompt has."""
        instance, prompt = await self._find(read(said, _Named))
        manifest = prompt.manifest or await instance.manifest(prompt.tokens)
        return {
            "manifest": msgspec.to_builtins(manifest),
            "tokens": len(prompt.tokens),
            "blocks": len(manifest.hashes),
        }

    async def locate(self, said: object) -> Outputs:
        """`tokens` of the prompt that the engine holds, how well that is `known`, and how many of
        the prompt's `blocks` are in the layer (`blocks_in_layer`)."""
        instance, prompt = await self._find(read(said, _Named))
        where = await instance.locate(prompt.tokens)
        return {
            "tokens": where.engine_tokens,
            "known": where.known,
            "blocks": len(where.in_layer),
            "blocks_in_layer": sum(where.in_layer),
        }

    async def publish(self, said: object) -> Outputs:
        """`tokens` and `blocks` that are in the layer now, the `ticket` for the next engine, and
        the `artifact` that was made of them (`as_artifact`)."""
        wanted = read(said, _Publish)
        instance, prompt = await self._find(wanted)
        done = await instance.publish(prompt.tokens, timeout=wanted.timeout_s)
        outputs: Outputs = {"tokens": done.tokens, "blocks": done.blocks, "ticket": done.ticket}
        if wanted.as_artifact:
            outputs["artifact"] = await seal_prompt(self._client, prompt.tokens, done.manifest)
        return outputs

    async def prefetch(self, said: object) -> Outputs:
        """`tokens` of the prompt whose `blocks` are on the engine's node now."""
        wanted = read(said, _Bring)
        instance, prompt = await self._find(wanted, restore=True)
        done = await instance.prefetch(
            prompt.tokens, ticket=wanted.ticket, manifest=prompt.manifest
        )
        return {"tokens": done.tokens, "blocks": done.blocks}

    async def hydrate(self, said: object) -> Outputs:
        """`tokens` of the prompt that the engine holds now, and how many of them it `found`."""
        wanted = read(said, _Bring)
        instance, prompt = await self._find(wanted, restore=True)
        done = await instance.hydrate(prompt.tokens, ticket=wanted.ticket, manifest=prompt.manifest)
        return {"tokens": done.tokens, "found": done.found}

    async def evict(self, said: object) -> Outputs:
        """`tokens` of the prompt that the engine forgot, and `layer_blocks` that its node did."""
        wanted = read(said, _Evict)
        instance, prompt = await self._find(wanted)
        done = await instance.evict(
            prompt.tokens, engine=wanted.engine, layer=wanted.layer, manifest=prompt.manifest
        )
        return {"tokens": done.tokens, "layer_blocks": done.layer_blocks}

    async def _find(self, named: _Named, *, restore: bool = False) -> tuple[Instance, Prompt]:
        """The engine as it is now, and the prompt that is named; `restore`: the blocks of an
        artifact are in the layer then. Raises InvalidArgument unless exactly one is named."""
        given = [named.prompt, named.messages, named.artifact]
        if sum(one is not None for one in given) != 1:
            raise InvalidArgument(
                "It is not said which prompt.", hint="Give one of prompt, messages and artifact."
            )
        instance = await Instance.meet(self._client, self._url, engine=self._engine)
        if named.artifact is not None:
            get = restore_blocks if restore else read_prompt
            return instance, await get(self._client, named.artifact)
        if named.messages is not None:
            return instance, Prompt(await instance.tokenize_chat(named.messages))
        if isinstance(named.prompt, str):
            return instance, Prompt(await instance.tokenize(named.prompt))
        assert named.prompt is not None
        return instance, Prompt(named.prompt)
