"""Signals: a trainer says that weights are published; a worker that dies in between misses nothing.

tcctl up && python examples/07_signals.py
"""

from __future__ import annotations

import sys

import tensorcast as tc

READER = "example-rollout"


def main() -> None:
    """Emits three signals; a reader handles one and is gone; the next of its name does the rest."""
    with tc.connect() as client:
        worker = client.signals("example.weights.*", durable=READER, ack_within=1.0)
        for step in (1, 2, 3):
            said = client.emit("example.weights.published", {"key": f"policy@{step}"})
            print(f"emitted policy@{step} at position {said.seq} of the log")

        first = worker.next(timeout=10)
        assert first is not None
        print(f"the worker installs {first.data['key']}, and is gone")
        first.ack()
        worker.close()

        with client.signals("example.weights.*", durable=READER) as heir:
            left = {"policy@2", "policy@3"}
            while left:
                signal = heir.next(timeout=30)
                assert signal is not None, left
                print(f"its heir installs {signal.data['key']} (delivery {signal.delivery})")
                left.discard(str(signal.data["key"]))
                signal.ack()
        client.forget_reader(READER)

        (topic,) = client.api.topics("example.weights.*")
        print(f"{topic.topic}: {topic.emitted} signals, the last one says {topic.data}")


if __name__ == "__main__":
    try:
        main()
    except tc.TensorCastError as error:
        sys.exit(f"Error: {error}")
