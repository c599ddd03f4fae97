"""New weights for a model that serves: all of them or none, on all ranks or on none.

Everything that can go wrong with the new weights goes wrong in `stage`, which touches nothing of
the model. `commit` applies them; what goes wrong there is undone with the old ones, whose bytes are
kept for that. When even this fails the process has to end: a model with weights of two versions
must not serve. Every rank does the same, and each step counts only when all have done it.

Knows no engine and no cluster: what it needs of them is given to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, NoReturn, Protocol

from tensorcast.schema.errors import InvalidArgument, Rejected, TensorCastError, Unavailable

if TYPE_CHECKING:
    import torch

Shapes = Mapping[str, tuple[str, tuple[int, ...]]]
"""The dtype (as safetensors writes it) and shape of each tensor of a checkpoint."""
FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
"""Of these each can become the other."""
NAMED_MAX = 3


class Weights(NamedTuple):
    """Weights in the form of a checkpoint: what they are called, their artifact (None: they are not
    from the cluster; the first, where they are several), their tensors, which may be read more than
    once, and what these look like. `name` is never that of others, if their artifact is not."""

    version: str
    artifact: str | None
    tensors: Callable[[], Iterable[tuple[str, torch.Tensor]]]
    shapes: Shapes
    name: str = ""


class Model(Protocol):
    """What is updated."""

    def apply(self, weights: Weights) -> None:
        """Gives the model these weights. Whatever it raises, the model may be half old, half new;
        it can be called again then."""
        ...

    def agree(self, problem: str) -> str:
        """What went wrong with this step, here (empty: nothing) or on any other rank: each must
        call it, and gets the same."""
        ...

    def record(self, weights: Weights, *, wait: bool) -> None:
        """Puts on record that these weights serve from now on; with `wait` raises TensorCastError
        when that fails: then they must not. Else it is said as soon as can be."""
        ...

    def abandon(self, reason: str) -> NoReturn:
        """Ends the process at once."""
        ...


class Updater:
    """The versions of one model on one rank: what it serves, and what it will serve next."""

    def __init__(self, model: Model, serving: Weights | None) -> None:
        """`serving` are the weights that the model has; None: nobody has their bytes any more, so
        that an update could not be undone."""
        self._model = model
        self.serving = serving
        self.staged: Weights | None = None

    def stage(self, bring: Callable[[], Weights], *, exact: bool = False) -> None:
        """Brings and checks new weights on every rank; the model is not touched. Raises what
        `bring` raises, InvalidArgument for weights of another shape, Unavailable when another rank
        failed, Rejected when the weights of now could not be put back; then nothing is staged.
        `exact`: the new ones may have no tensor that those of now have not."""
        self.staged = None
        brought: list[Weights] = []
        error = failure_of(lambda: brought.append(self._brought(bring, exact)))
        problem = self._model.agree(explain(error))
        if problem:
            raise error or Unavailable(f"On another rank of this engine: {problem}")
        self.staged = brought[0]

    def _brought(self, bring: Callable[[], Weights], exact: bool) -> Weights:
        if self.serving is None:
            raise Rejected(
                "The weights that serve now could not be put back if anything went wrong.",
                hint="Start the engine with --load-format tensorcast, or leave its checkpoint where"
                " it was when it started.",
            )
        weights = bring()
        check_shapes(weights.shapes, self.serving.shapes, exact=exact)
        return weights

    def cancel(self) -> None:
        """Forgets what was staged."""
        self.staged = None

    def commit(self) -> Weights:
        """Makes the staged weights those of the model, on all ranks or on none, and puts it on
        record. When it raises, the old ones are in place again and are those that serve. Raises
        Rejected when nothing is staged."""
        new, old = self.staged, self.serving
        if new is None or old is None:
            raise Rejected("No new weights were received.", hint="Send update_weights first.")
        self.staged = None
        self._try(lambda: self._model.apply(new), old)
        try:
            record = partial(self._model.record, new, wait=True)
            self._try(record, old)
        except TensorCastError:
            self._model.record(old, wait=False)  # nobody knows whether the other was recorded
            raise
        self.serving = new
        return new

    def _try(self, step: Callable[[], None], old: Weights) -> None:
        """A step that all ranks must do; else all go back to the old weights."""
        error = failure_of(step)
        problem = self._model.agree(explain(error))
        if not problem:
            return
        undone = self._model.agree(explain(failure_of(lambda: self._model.apply(old))))
        if undone:
            self._model.abandon(f"The weights {old.version} could not be put back: {undone}")
        raise error or Unavailable(f"On another rank of this engine: {problem}")


def check_shapes(new: Shapes, old: Shapes, *, exact: bool = False) -> None:
    """Raises InvalidArgument unless `new` has all tensors of `old`, in their shapes and in a dtype
    that can become theirs. Others may be there too, unless it is to be `exact`: a model passes over
    what it does not know, or refuses it, which is undone."""
    missing = sorted(old.keys() - new.keys())
    if missing:
        raise InvalidArgument(
            f"The new weights lack {_few(missing)}.", hint="Are they of the same model?"
        )
    strange = sorted(new.keys() - old.keys())
    if strange and exact:
        raise InvalidArgument(
            f"The new weights have {_few(strange)}, which the model has not.",
            hint="Are they of the same model?",
        )
    for name, (dtype, shape) in old.items():
        found = new[name]
        is_alike = found[0] == dtype or {found[0], dtype} <= FLOATS
        if found[1] != shape or not is_alike:
            raise InvalidArgument(
                f"The new {name} is {_words(found)}; the model has {_words((dtype, shape))}.",
                hint="Are they of the same model?",
            )


def _few(names: list[str]) -> str:
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return ", ".join(names[:NAMED_MAX]) + more


def _words(shape: tuple[str, tuple[int, ...]]) -> str:
    return f"{shape[0]} {list(shape[1])}"


def failure_of(step: Callable[[], None]) -> Exception | None:
    """What a step raised. An engine's own code may raise anything, and the other ranks must hear of
    it instead of waiting."""
    try:
        step()
    except Exception as error:
        return error
    return None


def explain(error: Exception | None) -> str:
    """An error as one sentence for those who asked for the update; empty when there is none."""
    if error is None or isinstance(error, TensorCastError):
        return str(error or "")
    return f"{type(error).__name__}: {error}"
