"""A trainer's side: publish the next version of the weights, and give it to vLLM servers that run.

tcctl up && python examples/vllm_update.py                     publishes, and tells of the engines
python examples/vllm_update.py CHECKPOINT http://HOST:8000 ... gives them the weights of a folder

The servers need VLLM_SERVER_DEV_MODE=1 and --weight-transfer-config '{"backend": "tensorcast"}'.
"""

from __future__ import annotations

import argparse
import sys
import time

import torch

import tensorcast as tc
from tensorcast.engines.vllm.updates import update_engines


def main(folder: str, urls: list[str]) -> None:
    with tc.connect() as client:
        # What a trainer has: a state dict in the form of a checkpoint.
        weights = tc.load(folder) if folder else {"w": torch.full((256, 256), time.time())}

        # The key policy@N is new and stays; the key policy moves to it. Both or a Conflict.
        version = client.publish("policy", weights, labels={"step": str(int(time.time()))})
        print(f"published  {version}: {client.api.key(version).artifact}")

        # It goes to the engines' nodes and is checked there while they serve; then each is paused
        # for a moment. All of the new weights, or the old ones.
        if urls:
            for done in update_engines(client, urls, version):
                print(f"updated    {done.url}: paused for {done.paused_s * 1000:.0f} ms")

        # The log knows who served what, when: which weights made this sample?
        for engine in client.engines():
            print(f"engine     {engine.engine} serves {engine.version} since {engine.since}")
        for url in urls:
            print(f"made by    {client.weights_of(url, at=time.time()).version}")


if __name__ == "__main__":
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("folder", metavar="CHECKPOINT", nargs="?", default="")
    parser.add_argument("urls", metavar="URL", nargs="*")
    given = parser.parse_args()
    try:
        main(given.folder, given.urls)
    except (tc.TensorCastError, OSError) as error:
        sys.exit(f"Error: {error}")
