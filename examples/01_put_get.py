"""Put tensors, get them back without a copy, fill a module in place, make tensors where they stay.

tcctl up && python examples/01_put_get.py
"""

from __future__ import annotations

import sys

import torch

import tensorcast as tc


def main() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.Linear(512, 10))
    with tc.connect() as client:
        # The same content is the same artifact, so this can be run again and again.
        torch.manual_seed(0)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter)
        artifact = client.put(model.state_dict(), kind="weights", labels={"step": "1"})
        print(f"put      {artifact.id}: {len(artifact.index)} tensors")

        # They lie in the mover's memory, mapped privately: nothing is copied.
        tensors = client.get(artifact.id)
        print(f"got      {', '.join(tensors)}")

        # Writing to them changes nobody else's.
        tensors["0.weight"].zero_()
        again = client.get(artifact.id, names=["0.weight"])["0.weight"]
        print(f"private  {bool(again.abs().sum() > 0)}")

        # Into memory that exists: names, dtypes and shapes are checked before a byte is written.
        other = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.Linear(512, 10))
        client.get_into(artifact.id, other.state_dict())
        print(f"equal    {torch.equal(other[1].weight, model[1].weight)}")

        # Tensors that are made in the mover's memory are put without a copy. The put is safe when
        # it returns; its id is known when the mover has digested the bytes.
        made = client.empty(model.state_dict())
        for name, tensor in made.items():
            tensor.copy_(model.state_dict()[name])
        print(f"made     {client.put(made).id == artifact.id}")
    # Tensors outlive the client.
    print(f"still    {tuple(tensors['1.bias'].shape)}")


if __name__ == "__main__":
    try:
        main()
    except tc.TensorCastError as error:
        sys.exit(f"Error: {error}")
