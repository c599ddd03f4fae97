"""Models with their files through real movers, and reads of what is still on its way."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import tensorcast as tc
from stack import running_stack
from tensorcast.schema.chunks import ByteRange
from tensorcast.schema.socket import Arrived, Follow


@pytest.fixture(scope="module")
def stack():
    with running_stack(None) as running:
        running.start_mover("n1")
        running.start_mover("n2")
        yield running


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    generator = torch.Generator().manual_seed(5)
    layer = "model.layers.0.self_attn"
    tensors = {
        f"{layer}.{p}_proj.weight": torch.randn((1024, 1024), generator=generator) for p in "koqv"
    }
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (folder / "tokenizer.json").write_bytes(bytes(range(256)) * 40)
    return folder


def test_a_model_comes_back_as_the_folder_that_it_was(stack, model, tmp_path):
    with stack.connect("n1") as client:
        client.put(model, key="whole")
    with stack.connect("n2") as client:
        tensors = client.get("whole")
        assert client.files("whole")["tokenizer.json"] == bytes(range(256)) * 40
        client.export("whole", f"{tmp_path}/back/")
        alone = client.export("whole", tmp_path / "alone.safetensors")
        with pytest.raises(tc.InvalidArgument, match=r"model\.safetensors exists"):
            client.export("whole", tmp_path / "back")
    expected = load_file(model / "model.safetensors")
    assert {name: bool(torch.equal(tensors[name], expected[name])) for name in tensors} == {
        name: True for name in expected
    }
    back = tmp_path / "back"
    assert {path.name for path in back.iterdir()} == {path.name for path in model.iterdir()}
    assert (back / "config.json").read_bytes() == (model / "config.json").read_bytes()
    assert load_file(back / "model.safetensors").keys() == expected.keys()
    assert load_file(alone).keys() == expected.keys()


def test_what_has_come_can_be_read_before_the_rest(stack, model):
    with stack.connect("n1") as client:
        whole = client.put({"w": torch.arange(48 << 20, dtype=torch.int32)}, key="large").id
    with stack.connect("n2") as client:
        arrival = client.follow("large")
        assert arrival.artifact == whole
        seen = 0
        while True:
            for chunk in range(192):
                place = ByteRange(chunk << 20, 4)
                if arrival.has(place):
                    value = int.from_bytes(arrival.memory[place.offset : place.end], "little")
                    assert value == place.offset // 4
            seen += 1
            if arrival.is_whole:
                break
            arrival.wait(timeout=30)
        assert arrival.has(ByteRange(0, 192 << 20))
        assert client.follow("large").is_whole
    with stack.connect("n1") as client:
        assert client.follow("large").is_whole


def test_to_follow_what_is_not_there_says_so(stack):
    with stack.connect("n1") as client, pytest.raises(tc.NotFound):
        client.follow("nothing")


async def test_a_segment_that_will_not_be_filled_is_told(stack):
    async with tc.connect_async(stack.context("n1")) as client:
        artifact = await client.put({"w": torch.ones(9)})
        lost = Follow(artifact=artifact.id, segment="of-another-life", have=0)
        with pytest.raises(tc.Unavailable, match="will not be filled"):
            await client.mover.ask(lost, Arrived)
