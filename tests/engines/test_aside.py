"""New weights that a real vLLM makes beside those that serve: it hardly stands still, and answers
as if it had been started with them; also where its output head shares the embeddings' weights."""

from __future__ import annotations

import json
import shutil

import pytest
from safetensors.torch import load_file, save_file

import engine as engines
from models import tiny_model
from tensorcast.engines.vllm.updates import EngineServer, update_engines
from test_updates import PROMPTS, TRANSFER, client, served, stack, surroundings

__all__ = ["client", "stack"]
pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.timeout(600)]


def tied_model(seed, folder):
    """The tiny model without an output head of its own."""
    shutil.copytree(tiny_model(seed), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": True}))
    tensors = load_file(folder / "model.safetensors")
    del tensors["lm_head.weight"]
    for name in tensors:  # or each token is followed by itself
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensors[name] *= 30
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def tied(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tied")
    return [tied_model(seed, folder / str(seed)) for seed in (0, 1)]


@pytest.fixture(scope="module")
def expected(tied, tmp_path_factory):
    """What each version makes of each prompt, by vLLM's own loader."""
    folder = tmp_path_factory.mktemp("references")
    started = [engines.launch(model, folder / str(n)) for n, model in enumerate(tied)]
    try:
        return [
            {prompt: one.wait_ready().generate(prompt).tokens for prompt in PROMPTS}
            for one in started
        ]
    finally:
        for one in started:
            one.stop()


@pytest.fixture(scope="module")
def server(start_engine, stack, tied):
    return start_engine(tied[0], *TRANSFER, env=surroundings(stack, "vllm-tied"))


def weights(tied, seed):
    return load_file(tied[seed] / "model.safetensors")


def stands_still(server):
    return "while the engine stands still" in server.log_text()


def test_a_tied_head_has_the_new_weights_too(server, client, tied, expected):
    assert expected[0] != expected[1]
    assert served(server) == expected[0]
    for seed in (1, 0, 1):
        version = client.publish("tied", weights(tied, seed))
        update_engines(client, [server.url], version)
        assert served(server) == expected[seed]
    assert not stands_still(server)


def test_after_a_reload_behind_its_back(server, client, tied, expected):
    server.ask("/collective_rpc", {"method": "reload_weights", "kwargs": {}})
    update_engines(client, [server.url], client.publish("tied", weights(tied, 1)))
    assert served(server) == expected[1]
    assert not stands_still(server)


def test_without_room_beside_it(server, client, tied, expected):
    for seed in (0, 1):
        version = client.publish("tied", weights(tied, seed))
        one = EngineServer(server.url)
        one.init()
        one.start()
        info = {"version": version, "artifact": client.api.key(version).artifact, "aside": False}
        server.ask("/update_weights", {"update_info": info})
        one.pause()
        one.finish(version)
        one.resume()
        assert served(server) == expected[seed]
