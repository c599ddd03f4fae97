"""The trainer's side for who drives vLLM by vLLM's own classes; `updates.py` needs none of them.

    engine = TensorCastTrainerEngine.trainer_init(
        TensorCastTrainerInitInfo(name="policy", rank=0),
        client=HTTPVLLMWeightSyncClient("http://10.0.0.1:8000"), source=ModuleSource(model))
    engine.send_weights()                                        # engine.version: "policy@7"

Rank 0 publishes and speaks to the inference engine; the others only take part in what the source
collects. Pausing is the caller's, as with every back end of vLLM.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from vllm.distributed.weight_transfer.base import (
    TrainerInitInfo,
    TrainerWeightTransferEngine,
    VLLMWeightSyncClient,
    WeightSource,
)

from tensorcast.client import Client, connect
from tensorcast.engines.vllm.updates import resolve_version
from tensorcast.schema.errors import InvalidArgument


@dataclass
class TensorCastTrainerInitInfo(TrainerInitInfo):
    """`name` is what the weights are published as; `context` and `node` choose the cluster and node
    on both sides, when the environment does not say it."""

    backend: ClassVar[str] = "tensorcast"
    name: str = "policy"
    context: str | None = None
    node: str | None = None


class TensorCastTrainerEngine(TrainerWeightTransferEngine[TensorCastTrainerInitInfo]):
    """Publishes what a source gives as the next version, and has an engine bring it."""

    init_info_cls = TensorCastTrainerInitInfo

    def __init__(
        self,
        name: str,
        connected: Client | None,
        *,
        client: VLLMWeightSyncClient,
        source: WeightSource,
    ) -> None:
        super().__init__(client=client, source=source, is_sender=connected is not None)
        self._name = name
        self._connected = connected
        self.version: str | None = None
        """What was sent last; None on ranks that do not send."""

    @classmethod
    def trainer_init(
        cls,
        init_info: TensorCastTrainerInitInfo,
        *,
        client: VLLMWeightSyncClient,
        source: WeightSource | None = None,
    ) -> Self:
        """On every rank of the trainer. Raises InvalidArgument without a source, and Unavailable
        when no cluster is known."""
        if source is None:
            raise InvalidArgument("Nothing says where the weights come from.", hint="Give source=.")
        connected = None
        if init_info.is_sender:
            connected = connect(init_info.context, node=init_info.node)
            named = {"context": init_info.context, "node": init_info.node}
            client.init_weight_transfer_engine({n: v for n, v in named.items() if v})
        return cls(init_info.name, connected, client=client, source=source)

    def send_weights(self) -> None:
        """One whole update. Raises as `publish`, and what the engine refuses with."""
        weights = {}
        assert self.source is not None
        for name, tensor in self.source:
            if self._connected is not None:
                weights[name] = tensor.detach()
        if self._connected is None:
            return
        version = self._connected.publish(self._name, weights)
        _, artifact = resolve_version(self._connected, version)
        self.client.start_weight_update()
        self.client.update_weights({"version": version, "artifact": artifact})
        self.client.finish_weight_update(version)
        self.version = version

    def shutdown(self) -> None:
        """Lets go of the cluster."""
        if self._connected is not None:
            self._connected.close()
