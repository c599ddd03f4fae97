"""How busy a vLLM engine is, read from its `/metrics`. Pure.

Counters grow from the start of the engine; what is of interest is what happened between two looks.
Several data-parallel ranks behind one address count together.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Final

import msgspec

from tensorcast.schema.errors import Corrupt

PREFIX: Final = "vllm:"
_LINE: Final = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
_BOUND: Final = re.compile(r'(?:^|,)le="([^"]*)"')
_TTFT: Final = "time_to_first_token_seconds"
_GAUGES: Final = ("num_requests_running", "num_requests_waiting")
_COUNTERS: Final = (
    "prompt_tokens_total",
    "generation_tokens_total",
    "num_preemptions_total",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "request_success_total",
    f"{_TTFT}_sum",
    f"{_TTFT}_count",
)


class Sample(msgspec.Struct, frozen=True):
    """What the page said: sums over all ranks (`usage`: the highest), and the counts of first
    tokens up to each bound in seconds."""

    values: dict[str, float]
    usage: float
    ttft: dict[float, float]


class Load(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How busy an engine is: requests that run and wait, the share of its KV cache in use (0 to 1),
    and, since the look before (`window_s` seconds ago), requests finished, tokens a second, the
    share of prompt tokens found in the cache, and the time to first token: mean and 95th
    percentile, in seconds (None: no first token came)."""

    running: int
    waiting: int
    cache_usage: float
    finished: int = 0
    preempted: int = 0
    prompt_tokens_per_s: float = 0.0
    generated_tokens_per_s: float = 0.0
    cache_hit_share: float | None = None
    ttft_s: float | None = None
    ttft_p95_s: float | None = None
    window_s: float = 0.0


def parse_metrics(text: str) -> Sample:
    """The figures of a page in the text format of Prometheus. Raises Corrupt when it has none of
    vLLM's."""
    values: dict[str, float] = {}
    usage: list[float] = []
    ttft: dict[float, float] = {}
    for name, labels, value in _lines(text):
        if name == "kv_cache_usage_perc":
            usage.append(value)
        elif name == f"{_TTFT}_bucket":
            bound = _BOUND.search(labels)
            if bound is not None and (limit := _number(bound.group(1))) is not None:
                ttft[limit] = ttft.get(limit, 0.0) + value
        elif name in _GAUGES or name in _COUNTERS:
            values[name] = values.get(name, 0.0) + value
    if not all(name in values for name in _GAUGES):
        raise Corrupt(
            "The page has no figures of a vLLM engine.", hint="Is that the address of its server?"
        )
    return Sample(values, max(usage, default=0.0), ttft)


def _lines(text: str) -> Iterable[tuple[str, str, float]]:
    for line in text.splitlines():
        if line.startswith(PREFIX):
            found = _LINE.match(line)
            value = _number(found.group(3)) if found else None
            if found is not None and value is not None:
                yield found.group(1).removeprefix(PREFIX), found.group(2) or "", value


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return None if math.isnan(value) else value


def measure_load(sample: Sample, before: Sample | None, window_s: float) -> Load:
    """How busy it is now; what happened since the look before, if it is the same life of the
    engine."""
    load = Load(
        running=_whole(sample.values["num_requests_running"]),
        waiting=_whole(sample.values["num_requests_waiting"]),
        cache_usage=round(min(1.0, max(0.0, sample.usage)), 4),
    )
    if before is None or window_s <= 0:
        return load
    grown = {name: sample.values.get(name, 0) - before.values.get(name, 0) for name in _COUNTERS}
    if any(value < 0 for value in grown.values()):
        return load
    queries = grown["prefix_cache_queries_total"]
    first_tokens = grown[f"{_TTFT}_count"]
    return msgspec.structs.replace(
        load,
        finished=_whole(grown["request_success_total"]),
        preempted=_whole(grown["num_preemptions_total"]),
        prompt_tokens_per_s=round(grown["prompt_tokens_total"] / window_s, 1),
        generated_tokens_per_s=round(grown["generation_tokens_total"] / window_s, 1),
        cache_hit_share=round(grown["prefix_cache_hits_total"] / queries, 4) if queries else None,
        ttft_s=round(grown[f"{_TTFT}_sum"] / first_tokens, 4) if first_tokens else None,
        ttft_p95_s=_quantile(sample.ttft, before.ttft, 0.95),
        window_s=round(window_s, 3),
    )


def _whole(value: float) -> int:
    return int(min(max(0.0, value), 1e15))


def _quantile(now: dict[float, float], before: dict[float, float], share: float) -> float | None:
    """Below which time that share of the first tokens of the window came: the bound of its bucket,
    the largest finite one at most."""
    counts = [(bound, now[bound] - before.get(bound, 0.0)) for bound in sorted(now)]
    total = counts[-1][1] if counts else 0.0
    if total <= 0:
        return None
    finite = [bound for bound, _ in counts if math.isfinite(bound)]
    reached = (bound for bound, count in counts if count >= share * total)
    return min(next(reached, math.inf), max(finite, default=math.inf))


def is_news(load: Load, said: Load | None) -> bool:
    """Whether it differs from what was said last by more than noise."""
    return (
        said is None
        or (load.running, load.waiting) != (said.running, said.waiting)
        or abs(load.cache_usage - said.cache_usage) >= 0.02
        or load.finished > 0
    )
