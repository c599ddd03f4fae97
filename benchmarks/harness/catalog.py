"""What a suite and a contender are, as values. `suites/` lists them."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Work:
    """One thing that is timed. `size` is its bytes, `about` what workers are told of it. Works of
    one `group` run in their order, one after another (a put comes before its get). With
    `is_compared` the harness clears the target before and compares it after; otherwise the worker
    checks what it got. `fresh` bytes of new memory are what it needs (see `memory.back_pages`)."""

    name: str
    text: str
    size: int
    group: str
    about: dict[str, object] = field(default_factory=dict)
    is_compared: bool = True
    fresh: int = 0


@dataclass(frozen=True)
class Contender:
    """One that takes part. `worker` is `module:Class`; `environment` the name of a peer's
    environment ("" for our own), `needs` are more of them. `works` are those that it can do (() for
    all). A contender that `rests` is stopped between its turns: its threads that poll cost the
    others nothing. Without `is_compared` it moves bytes of its own."""

    name: str
    kind: str
    over: str
    worker: str
    environment: str = ""
    needs: tuple[str, ...] = ()
    is_compared: bool = True
    works: tuple[str, ...] = ()
    options: dict[str, object] = field(default_factory=dict)
    environ: dict[str, str] = field(default_factory=dict)
    note: str = ""
    rests: bool = False
    timeout_s: float = 60.0


@dataclass(frozen=True)
class Suite:
    """Contenders and works that belong together, and how much memory they move bytes in.
    `unlisted` are peers that are known and cannot run, with the reason."""

    name: str
    text: str
    works: tuple[Work, ...]
    contenders: tuple[Contender, ...]
    source_bytes: int
    target_bytes: int
    unlisted: tuple[tuple[str, str], ...] = ()

    def works_of(self, contender: Contender) -> tuple[Work, ...]:
        """What this contender does here."""
        names = contender.works or tuple(work.name for work in self.works)
        return tuple(work for work in self.works if work.name in names)


@dataclass(frozen=True)
class Sizes:
    """How big everything is: `full` is the table of goals, `quick` a proof that all of it runs."""

    is_quick: bool
    transfer: int
    tensors: int
    share: int
    share_large: int
    blocks_small: int
    blocks_large: int
    singles: int
    checkpoint: int


FULL = Sizes(
    is_quick=False,
    transfer=1 << 30,
    tensors=300,
    share=1 << 30,
    share_large=8 << 30,
    blocks_small=4096,
    blocks_large=256,
    singles=512,
    checkpoint=1 << 30,
)
QUICK = Sizes(
    is_quick=True,
    transfer=16 << 20,
    tensors=30,
    share=16 << 20,
    share_large=64 << 20,
    blocks_small=64,
    blocks_large=4,
    singles=32,
    checkpoint=16 << 20,
)
