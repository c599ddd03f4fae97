"""The engine's side of a roll-out: brings new weights when it is asked, changes to them between
requests, and says what it serves. For any program that holds a model; vLLM has a side of its own.

    receiver = Receiver(client, presence, model.load_state_dict)
    receiver.begin("policy")                         # what the key names now
    for call in client.calls(presence.engine):
        receiver.answer(call)                        # between requests

Which calls there are says `schema/rollouts.py`; the rules of a change `updating.py`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NoReturn, Protocol

from tensorcast.engines.updating import Updater, Weights, explain, failure_of
from tensorcast.engines.versions import find_version
from tensorcast.schema.errors import InvalidArgument, Rejected, TensorCastError
from tensorcast.schema.faults import from_error
from tensorcast.schema.ids import is_artifact_id
from tensorcast.schema.rollouts import STAGE, SWITCH, UNSTAGE

if TYPE_CHECKING:
    import torch

    from tensorcast.client import Client
    from tensorcast.engines.presence import Presence

RECORD_S: Final = 30.0
TORN: Final = 70
"""The exit status of an engine that has weights of two versions."""
BEGIN_MAX: Final = 10
LOGGER: Final = logging.getLogger("tensorcast.receiver")

Tensors = Mapping[str, "torch.Tensor"]
Load = Callable[[Tensors], object]
"""Makes tensors, by name, those of the model; it serves no request meanwhile."""


class Call(Protocol):
    """What it needs of a call (`client.calls`)."""

    @property
    def id(self) -> str: ...

    @property
    def verb(self) -> str: ...

    @property
    def arguments(self) -> dict[str, object]: ...

    def is_wanted(self) -> bool: ...

    def drop(self) -> None: ...

    def answer(self, outputs: Mapping[str, object] | None = None) -> None: ...

    def fail(self, detail: str, *, kind: str = "invalid", permanent: bool = False) -> None: ...


class Receiver:
    """The weights of one model in one process. Not for several threads at once: `begin` and
    `answer` are to be called where no request is under way."""

    def __init__(self, client: Client, presence: Presence, load: Load) -> None:
        """`presence` tells the cluster of the engine; it is started by the caller."""
        self._client = client
        self._model = _Model(presence, load)
        self._updater = Updater(self._model, None)
        self._parts = self._parts_staged = 1

    @property
    def version(self) -> str:
        """What it serves; empty before `begin`."""
        serving = self._updater.serving
        return serving.version if serving is not None else ""

    def begin(self, key: str, *, timeout_s: float = 600.0) -> str:
        """Loads what a key names now, says so, and looks again: whoever moved the key before the
        engine was known could not tell it. Returns the version. Raises NotFound, Unavailable, what
        `load` raises."""
        for _ in range(BEGIN_MAX):
            version, artifact = find_version(self._client, key)
            weights = self._bring(version, (artifact,), check=False, timeout_s=timeout_s)
            self._model.apply(weights)
            self._model.record(weights, wait=True)
            self._updater = Updater(self._model, weights)
            if self._client.api.artifact(key).id == artifact:
                break
        return self.version

    def answer(self, call: Call) -> bool:
        """Does what a roll-out asks, and answers; False for calls of other kinds, which are left
        to the caller. What nobody waits for any more is not done."""
        if call.verb not in (STAGE, SWITCH, UNSTAGE):
            return False
        if not call.is_wanted():
            LOGGER.warning("Call %s (%s) is dropped: its step is over.", call.id, call.verb)
            call.drop()
            return True
        error = failure_of(lambda: self._do(call.verb, call.arguments))
        if error is None:
            call.answer({"version": self.version})
        elif isinstance(error, TensorCastError):
            fault = from_error(error)
            call.fail(fault.detail, kind=fault.kind.value, permanent=fault.permanent)
        else:
            call.fail(explain(error))
        return True

    def _do(self, verb: str, said: Mapping[str, object]) -> None:
        if verb == STAGE:
            self._stage(said)
        elif verb == SWITCH:
            self._switch(_version(said))
        else:
            self._updater.cancel()

    def _stage(self, said: Mapping[str, object]) -> None:
        version, artifacts = _version(said), _artifacts(said)
        self._updater.cancel()
        if self.version == version and self._artifact == artifacts[0]:
            return
        check = said.get("check") is not False
        # Weights of more parts than it began with have tensors that it does not know yet.
        exact = len(artifacts) == self._parts
        self._updater.stage(lambda: self._bring(version, artifacts, check=check), exact=exact)
        self._parts_staged = len(artifacts)

    def _switch(self, version: str) -> None:
        staged = self._updater.staged
        if staged is None and self.version == version:
            return
        if staged is None or staged.version != version:
            raise Rejected(f"The weights {version} are not staged.", hint="Stage them first.")
        self._updater.commit()
        self._parts = self._parts_staged

    @property
    def _artifact(self) -> str | None:
        return self._updater.serving.artifact if self._updater.serving is not None else None

    def _bring(
        self, version: str, artifacts: tuple[str, ...], *, check: bool, timeout_s: float = 600.0
    ) -> Weights:
        from tensorcast.client.tensors import name_dtypes

        names = name_dtypes()
        found: dict[str, torch.Tensor] = {}
        for artifact in artifacts:
            found |= self._client.get(artifact, check=check, timeout=timeout_s)
        shapes = {name: (names[one.dtype], tuple(one.shape)) for name, one in found.items()}
        return Weights(version, artifacts[0], lambda: iter(found.items()), shapes)


def _version(said: Mapping[str, object]) -> str:
    version = said.get("version")
    if not isinstance(version, str) or not version:
        raise InvalidArgument("The call names no version.")
    return version


def _artifacts(said: Mapping[str, object]) -> tuple[str, ...]:
    """The artifacts that a call names, the main one first. Raises InvalidArgument."""
    parts = said.get("parts")
    named = list(parts.values()) if isinstance(parts, Mapping) else []
    artifacts = tuple(dict.fromkeys(str(one) for one in (said.get("artifact"), *named)))
    if not all(map(is_artifact_id, artifacts)):
        raise InvalidArgument("The call names no artifact by its id.")
    return artifacts


class _Model:
    """The model as the updater sees it: one process, one rank."""

    def __init__(self, presence: Presence, load: Load) -> None:
        self._presence = presence
        self._load = load

    def apply(self, weights: Weights) -> None:
        self._load(dict(weights.tensors()))

    def agree(self, problem: str) -> str:
        return problem

    def record(self, weights: Weights, *, wait: bool) -> None:
        self._presence.serve(weights.version, weights.artifact)
        if wait:
            self._presence.wait_recorded(RECORD_S)

    def abandon(self, reason: str) -> NoReturn:
        LOGGER.critical("This model has weights of two versions and must not serve. %s", reason)
        os._exit(TORN)
