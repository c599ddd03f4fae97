"""Weights: a trainer publishes versions, engines change to them between requests, and one that
is bad is stopped and undone.

tcctl up --nodes 2 && python examples/10_weights.py

Small programs stand for the engines. Each says what it serves and how it does (`weights.health`).
"""

from __future__ import annotations

import contextlib
import multiprocessing
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from multiprocessing.synchronize import Event

import torch

import tensorcast as tc
from tensorcast.engines.presence import Presence
from tensorcast.engines.receiving import Receiver

NAME = "example-policy"
ENGINES = ("example-e1", "example-e2", "example-e3")
HEALTH = "weights.health"
REQUEST_S = 0.1


def serve(engine: str, node: str, ready: Event) -> None:
    """An engine: answers requests by its weights, and changes them between two."""
    torch.set_num_threads(1)  # a child that is forked has none of its parent's
    model: dict[str, torch.Tensor] = {}

    def load(tensors: Mapping[str, torch.Tensor]) -> None:
        model.update(tensors)

    life = uuid.uuid4().hex
    with (
        tc.connect(node=node) as client,
        Presence(client.context, kind="example", engine=engine, life=life, node=node) as presence,
    ):
        calls = client.calls(engine)
        receiver = Receiver(client, presence, load)
        receiver.begin(NAME)
        ready.set()
        while True:
            loss = float(model["w"].float().mean())  # a request
            client.emit(HEALTH, {"engine": engine, "version": receiver.version, "loss": loss})
            call = calls.next(REQUEST_S)
            if call is not None and not receiver.answer(call):
                call.fail(f"{engine} cannot {call.verb}.")


@contextlib.contextmanager
def running(engine: str, node: str) -> Iterator[None]:
    """An engine as a process of its own."""
    fork = multiprocessing.get_context("fork")
    ready = fork.Event()
    process = fork.Process(target=serve, args=(engine, node, ready))
    process.start()
    try:
        assert ready.wait(60), f"{engine} does not begin"
        yield
    finally:
        process.kill()
        process.join()


def weights(loss: float) -> dict[str, torch.Tensor]:
    """What a trainer has after a step."""
    return {"w": torch.full((1 << 20,), loss), "step": torch.tensor([time.time()])}


def show(client: tc.Client, what: str) -> None:
    """What every engine serves, and what the name points to."""
    served = {one.engine: one.version for one in client.engines() if one.engine in ENGINES}
    live = [key for key in client.api.artifact(NAME).keys if key != NAME]
    print(f"{what}: {NAME} is {', '.join(live)}; engines serve {served}")


def main() -> None:
    """Publishes three versions: one to begin with, a better one, and a bad one."""
    canary = tc.Canary(
        count=1,
        soak_s=1.0,
        health=(
            tc.Health(
                topic=HEALTH,
                where={"engine": ENGINES[0]},
                checks=(tc.Check(field="loss", op="le", value=1.0),),
                count=1,
            ),
        ),
    )
    with tc.connect() as client, contextlib.ExitStack() as stack:
        nodes = [node.node for node in client.api.nodes() if node.state == "up"]
        client.publish(NAME, weights(0.5))
        for number, engine in enumerate(ENGINES):
            stack.enter_context(running(engine, nodes[number % len(nodes)]))
        show(client, "begun")

        better = client.publish(NAME, weights(0.25), point=False)
        client.roll_out(better, strategy=tc.Rolling(at_once=2)).wait(60)
        show(client, "rolled out")

        bad = client.publish(NAME, weights(9.0), point=False)
        run = client.roll_out(bad, engines=ENGINES, strategy=canary)
        run.settle(60)
        show(client, f"{bad} {run.status}")
        assert run.info.fault is not None
        print(f"because: {run.info.fault.detail}")


if __name__ == "__main__":
    try:
        main()
    except tc.TensorCastError as error:
        sys.exit(f"Error: {error}")
