"""Mixed into the worker of an engine under test (`--worker-extension-cls faults.Faults`): breaks
what it is told to, over /collective_rpc."""

from __future__ import annotations

import itertools
import os


class Faults:
    """Methods of a worker."""

    def break_loads(self, after: int, times: int, rank: int = 0) -> None:
        """The next `times` loads of weights break off after so many tensors, on one rank."""
        if self.rank != rank:
            return
        model = self.model_runner.get_model()
        load = type(model).load_weights.__get__(model)
        left = itertools.count(times, -1)

        def breaking(weights):
            if next(left) <= 0:
                del model.load_weights
                return model.load_weights(weights)
            return load(cut(weights))

        def cut(weights):
            yield from itertools.islice(weights, after)
            raise RuntimeError("a load that breaks off, for a test")

        model.load_weights = breaking

    def environment(self, name: str) -> str | None:
        return os.environ.get(name)
