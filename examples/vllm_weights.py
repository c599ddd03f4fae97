"""Weights of vLLM from the node's replica, for a machine with nothing on disk.

tcctl up && python examples/vllm_weights.py          a made-up model: what is put and comes back
python examples/vllm_weights.py MODEL_FOLDER         a real one: tells how to start vLLM with it
python examples/vllm_weights.py MODEL_FOLDER --run   and starts it, if vLLM is installed here
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

import tensorcast as tc
from tensorcast.schema.safetensors import write_header


def make_model(folder: Path) -> Path:
    """A folder as Hugging Face lays it out, for whoever has none at hand."""
    names = [f"model.layers.0.self_attn.{part}_proj.weight" for part in "koqv"]
    with (folder / "model.safetensors").open("wb") as file:
        file.write(write_header(((name, "F32", (64, 64)) for name in names), {}))
        for _ in names:
            file.write(torch.randn(64, 64).numpy())
    (folder / "config.json").write_text('{"model_type": "llama"}')
    return folder


def main(folder: str | None, *, runs: bool) -> None:
    with tc.connect() as client, tempfile.TemporaryDirectory() as scratch:
        model = Path(folder) if folder else make_model(Path(scratch))

        # The folder is one artifact: its tensors, in the order of engines, and its small files.
        artifact = client.put(model)
        print(f"put         {artifact.id[:12]}: {', '.join(client.files(artifact.id))}")

        # What a machine with an empty disk needs beside the weights of its node.
        bare = Path(scratch) / "bare"
        made = client.write_files(artifact.id, bare)
        print(f"written     {', '.join(Path(path).name for path in made.paths)}")

        # What is there already can be read while the node brings the rest.
        arrival = client.follow(artifact.id)
        print(f"followed    {len(arrival.index)} tensors, whole: {arrival.is_whole}")

        server = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
        command = [*server, "--model", str(bare), "--load-format", "tensorcast"]
        print(f"now run     {' '.join(command)}")
        if runs:
            subprocess.run(command, check=True)


if __name__ == "__main__":
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("folder", metavar="MODEL_FOLDER", nargs="?")
    parser.add_argument("--run", action="store_true", help="starts vLLM")
    given = parser.parse_args()
    try:
        main(given.folder, runs=given.run)
    except (tc.TensorCastError, OSError) as error:
        sys.exit(f"Error: {error}")
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
