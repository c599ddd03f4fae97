"""The past: every event, the state as it was, what changed, and what an artifact was used for.

tcctl up --nodes 2 && python examples/08_time_travel.py
"""

from __future__ import annotations

import sys

import torch

import tensorcast as tc


def main() -> None:
    """Puts a model and one that is made from it, and looks back."""
    with tc.connect() as client:
        base = client.put({"w": torch.zeros(1024)}, key="example-base")
        made = {"made-from": "example-base", "made-by": "add-one"}
        client.put({"w": torch.ones(1024)}, key="example-merged", labels=made)
        client.replicate("example-merged", to="all").wait(timeout=60)

        events = list(client.history(artifact="example-merged"))
        for event in events:
            print(f"{event.seq:4} {event.type:28} by {event.actor}")

        first, last = events[0].seq, events[-1].seq
        before, after = client.at(first - 1), client.at(last)
        print(f"{before} and {after}:")
        for change in client.api.diff(before.seq, after.seq).changes:
            print(f"  {change.change} {change.kind} {change.id}")

        why = client.api.why(last)
        chain = " > ".join(f"{one.type} by {one.actor}" for one in (*why.causes, why.event))
        print(f"event {last}: {chain}")

        lineage = client.lineage("example-merged")
        (source,) = lineage.sources
        assert source.artifact == base.id
        print(f"made from {source.artifact[:12]} by {source.by}")
        for span in lineage.keys:
            print(f"{span.key} points to it since {span.since:%H:%M:%S}, by {span.actor}")


if __name__ == "__main__":
    try:
        main()
    except tc.TensorCastError as error:
        sys.exit(f"Error: {error}")
