"""Under which space an engine's blocks are kept now, as the weights of its workers change."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tensorcast.engines.vllm.connector.tracks import agree


class Versions:
    """`name` makes the space out of the name of the weights. `known`: what the weights are called
    where the workers do not say it (None: not yet, or never). Nothing is shared while it is not
    `is_open`: not all other facts are known."""

    def __init__(
        self, name: Callable[[str], str], known: str | None = None, *, is_open: bool = True
    ) -> None:
        self._name = name
        self.is_open = is_open
        self.known = known
        self._by_rank: dict[int, str | None] = {}
        self._spaces: tuple[str, str] | None = None
        self._alone = ("", "")
        self._was_used = False
        self._was_used_before = False
        self.is_cache_mixed = False
        """Whether the engine's own cache may hold KV of other weights than the present ones: then
        what builds on it is not shared."""

    @property
    def weights(self) -> str | None:
        """What the workers say that they have; None when nobody knows."""
        return agree(self._by_rank.values()) if self._by_rank else None

    @property
    def are_told(self) -> bool:
        """Whether any worker says which weights it has."""
        return any(self._by_rank.values())

    def space(self) -> str | None:
        """Where blocks belong now; None as long as the weights are not known."""
        weights = self.weights if self.are_told else self.known
        if weights is None or not self.is_open:
            return None
        if weights == self._alone[0]:
            weights += self._alone[1]
        if self._spaces is None or self._spaces[0] != weights:
            self._spaces = (weights, self._name(weights))
        return self._spaces[1]

    def begin_step(self, *, has_tokens: bool) -> None:
        """A step is sent to the workers."""
        self._was_used_before = self._was_used
        self._was_used = self._was_used or has_tokens

    def hear(self, by_rank: Mapping[int, str | None]) -> None:
        """Which weights the workers had in the last step."""
        if not by_rank or all(self._by_rank.get(r, "") == w for r, w in by_rank.items()):
            return
        is_first = not self._by_rank
        before, were_told = self.space(), self.are_told
        self._by_rank.update(by_rank)
        if were_told and not self.are_told:
            self.known = None  # what that named is long gone
        if not is_first and self.space() != before and self._was_used_before:
            self.is_cache_mixed = True

    def rename(self, known: str | None) -> None:
        """Another name for weights of which the workers say nothing."""
        self.known = known

    def seclude(self, name: str) -> None:
        """From now on nobody else has what is computed with weights that are called as the present
        ones; `name` is used once."""
        weights = self.weights if self.are_told else self.known
        self._alone = (weights or "", f"+{name}")

    def clear(self) -> None:
        """The engine's own cache is empty now."""
        self._was_used = self._was_used_before = False
        self.is_cache_mixed = False
