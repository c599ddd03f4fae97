"""The scheduler's side of the connector: what is loaded and saved in which step.

It waits for nobody: where blocks are is asked by a thread (`lookups.py`). It knows no vLLM; what it
reads of requests and steps is in the protocols below.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final, Protocol

from tensorcast.engines.vllm.connector.counters import Counters
from tensorcast.engines.vllm.connector.inquiries import Naming, make_manifest, read_inquiry
from tensorcast.engines.vllm.connector.lookups import Lookup, Lookups
from tensorcast.engines.vllm.connector.messages import (
    LoadJob,
    SaveJob,
    StepPlan,
    StepReport,
)
from tensorcast.engines.vllm.connector.space import block_keys
from tensorcast.engines.vllm.connector.tracks import (
    Tokens,
    Track,
    all_there,
    find_matched,
    find_unsaved,
    merge_table,
)
from tensorcast.engines.vllm.connector.versions import Versions
from tensorcast.schema.block_wire import State

LOGGER = logging.getLogger("vllm.tensorcast")

RETRY_S: Final = 1.0
"""What could not be saved is tried again after so long."""
DOUBT_S_MAX: Final = 1.0
"""So long a request waits at most for the workers to say which weights they have."""
HERE: Final = (State.IN_MEMORY, State.ON_DISK)


class Request(Protocol):
    """What is read of vLLM's request."""

    @property
    def request_id(self) -> str: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def block_hashes(self) -> Sequence[bytes]: ...
    @property
    def all_token_ids(self) -> Tokens: ...
    @property
    def kv_transfer_params(self) -> Mapping[str, object] | None: ...


class NewRequest(Protocol):
    """A request in its first step (vLLM's NewRequestData)."""

    @property
    def req_id(self) -> str: ...
    @property
    def block_ids(self) -> tuple[list[int], ...]: ...
    @property
    def num_computed_tokens(self) -> int: ...


class CachedRequests(Protocol):
    """Requests in a later step (vLLM's CachedRequestData)."""

    @property
    def req_ids(self) -> list[str]: ...
    @property
    def resumed_req_ids(self) -> set[str]: ...
    @property
    def new_block_ids(self) -> list[tuple[list[int], ...] | None]: ...
    @property
    def num_computed_tokens(self) -> list[int]: ...


class Step(Protocol):
    """A step (vLLM's SchedulerOutput)."""

    @property
    def scheduled_new_reqs(self) -> Sequence[NewRequest]: ...
    @property
    def scheduled_cached_reqs(self) -> CachedRequests: ...
    @property
    def num_scheduled_tokens(self) -> Mapping[str, int]: ...
    @property
    def preempted_req_ids(self) -> set[str] | None: ...


@dataclass
class _Job:
    """A save under way: `left` workers have not ended it."""

    track: Track
    numbers: list[int]
    left: int
    is_kept: bool = True


def read_promise(said: Mapping[str, object] | None, blocks_max: int) -> tuple[int, str | None]:
    """How many blocks a prefill engine says to have saved for a request, and on which node."""
    ours = (said or {}).get("tensorcast")
    if not isinstance(ours, Mapping):
        return 0, None
    blocks, node = ours.get("blocks"), ours.get("node")
    if not isinstance(blocks, int) or blocks <= 0:
        return 0, None
    return min(blocks, blocks_max), node if isinstance(node, str) else None


class SchedulerSide:
    """`ranks` and `parts`: of which a block's keys are made. `loads`, `saves`: the role of this
    engine. `node`: for those who are told where this engine's blocks are."""

    def __init__(
        self,
        lookups: Lookups,
        versions: Versions,
        block_size: int,
        *,
        loads: bool,
        saves: bool,
        node: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lookups = lookups
        self.versions = versions
        self._block_size = block_size
        self._loads = loads
        self._saves = saves
        self._node = node
        self._clock = clock
        self._ranks: list[int] = [0]
        self._parts = 1
        self._tracks: dict[str, Track] = {}
        self._asked: dict[str, Lookup] = {}
        self._jobs: dict[int, _Job] = {}
        self._kept: list[tuple[Track, list[int]]] = []
        self._numbers = count(1)
        self._plan = StepPlan()
        self._finishing: list[str] = []
        self._counters = Counters()
        self._doubted_until_s = 0.0

    def know_workers(self, ranks: Sequence[int], parts: int) -> None:
        """Who keeps a piece of each block."""
        self._ranks, self._parts = sorted(ranks), parts

    def doubt_weights(self) -> None:
        """The workers may have other weights by now. They say it with their next step, and until
        then no request is looked up: one that comes meanwhile waits for a step without work."""
        self._doubted_until_s = self._clock() + DOUBT_S_MAX

    @property
    def _is_in_doubt(self) -> bool:
        return self._clock() < self._doubted_until_s

    # ---- a request comes -----------------------------------------------------------------------

    def begin(self, request: Request) -> None:
        """Asks where the blocks of a request are, before it is scheduled."""
        space = self.versions.space()
        if space is None or self._is_in_doubt or not request.block_hashes:
            return
        if read_inquiry(request.kv_transfer_params).apart:
            return
        before = self._asked.get(request.request_id)
        if before is not None and before.space == space:
            return
        hashes = list(request.block_hashes)
        keys = block_keys(space, hashes, self._ranks, self._parts)
        promised, node = read_promise(request.kv_transfer_params, len(hashes))
        node = node if node != self._node else None
        lookup = self._lookups.begin(keys, space, promised * self._each, node)
        self._asked[request.request_id] = lookup
        self._counters.add("lookups", 1)

    def match(self, request: Request, computed_tokens: int) -> int | None:
        """How many tokens after the computed ones can be loaded; None: not known yet."""
        if self._is_in_doubt:
            return None
        before = self._tracks.get(request.request_id)
        if before is not None and before.is_started:  # the engine took its blocks back
            self._begin_anew(before)
        track = self._track(request)
        track.local = computed_tokens // self._block_size
        if not self._loads or not track.may_load:
            return 0
        self.begin(request)
        lookup = self._asked.get(request.request_id)
        if lookup is None:
            return 0
        states = self._lookups.look(lookup)
        if states is None:
            return None
        are_there = all_there(states, self._each, State.ABSENT)
        found = find_matched(are_there, track.local, request.num_tokens, self._block_size)
        return found * self._block_size

    def allocate(self, request: Request, block_ids: Sequence[int], tokens: int) -> None:
        """The engine has blocks for what is to be loaded: `block_ids` are all of the request."""
        wanted = tokens // self._block_size
        lookup = self._asked.get(request.request_id)
        if wanted == 0 or lookup is None:
            return
        track = self._track(request)
        first, stop = track.local, track.local + wanted
        track.space = lookup.space
        track.is_loading = True
        self._counters.add("hit_blocks", wanted)
        self._plan.loads.append(
            LoadJob(
                request_id=request.request_id,
                space=lookup.space,
                hashes=tuple(request.block_hashes[first:stop]),
                block_ids=tuple(block_ids[first:stop]),
                node=lookup.node,
            )
        )

    def sources(self, request: Request, tokens: int) -> dict[int, int]:
        """From which kind of place (`State`) how many of the tokens come that are loaded."""
        lookup, track = self._asked.get(request.request_id), self._track(request)
        if lookup is None or lookup.states is None:
            return {State.ELSEWHERE: tokens} if tokens else {}
        found: dict[int, int] = {}
        for n in range(track.local, track.local + tokens // self._block_size):
            state = max(lookup.states[n * self._each : (n + 1) * self._each])
            found[state] = found.get(state, 0) + self._block_size
        return found

    @property
    def _each(self) -> int:
        """Keys of each block."""
        return len(self._ranks) * self._parts

    def _track(self, request: Request) -> Track:
        track = self._tracks.get(request.request_id)
        if track is None:
            space = self.versions.space() or ""
            track = Track(request.request_id, space, request.block_hashes, request.all_token_ids)
            track.is_apart = read_inquiry(request.kv_transfer_params).apart
            self._tracks[request.request_id] = track
        return track

    # ---- a step --------------------------------------------------------------------------------

    def plan(self, step: Step) -> StepPlan:
        """What the workers do in this step; begins the next plan."""
        plan, self._plan = self._plan, StepPlan()
        plan.weights = self.versions.weights
        plan.is_idle = not step.num_scheduled_tokens
        plan.preempted = set(step.preempted_req_ids or ())
        for request_id in plan.preempted:
            track = self._tracks.get(request_id)
            if track is not None and track.is_started:
                self._begin_anew(track)
        self.versions.begin_step(has_tokens=bool(step.num_scheduled_tokens))
        for new in step.scheduled_new_reqs:
            self._schedule(new.req_id, new.block_ids, new.num_computed_tokens, step, plan)
        cached = step.scheduled_cached_reqs
        for at, request_id in enumerate(cached.req_ids):
            self._schedule(
                request_id,
                cached.new_block_ids[at],
                cached.num_computed_tokens[at],
                step,
                plan,
                is_resumed=request_id in cached.resumed_req_ids,
            )
        plan.finishing, self._finishing = self._finishing, []
        return plan

    def _begin_anew(self, track: Track) -> None:
        """The engine took the blocks of a request back: it begins anew, and asks anew."""
        self._asked.pop(track.request_id, None)
        for number in track.pending:
            self._jobs.pop(number, None)
        space = self.versions.space() or ""
        anew = Track(track.request_id, space, track.hashes, track.tokens)
        anew.may_load, anew.is_apart = track.may_load, track.is_apart
        self._tracks[track.request_id] = anew

    def _schedule(
        self,
        request_id: str,
        new_blocks: tuple[list[int], ...] | None,
        computed_tokens: int,
        step: Step,
        plan: StepPlan,
        *,
        is_resumed: bool = False,
    ) -> None:
        track = self._tracks.get(request_id)
        if track is None:
            return
        new = new_blocks[0] if new_blocks is not None else None
        is_first = not track.is_started
        track.block_ids = merge_table(track.block_ids, new, is_resumed=is_resumed or is_first)
        if is_first:
            self._start(track)
        scheduled = step.num_scheduled_tokens.get(request_id, 0)
        track.complete = (computed_tokens + scheduled) // self._block_size
        if self._saves and track.may_save and track.complete > track.next:
            self._save(track, plan)

    def _start(self, track: Track) -> None:
        """The first step of a request. What its KV was computed with decides where it belongs."""
        track.is_started, track.is_loading = True, False
        space = self.versions.space()
        lookup = self._asked.pop(track.request_id, None)
        if lookup is not None and lookup.space == space:
            states = self._lookups.peek(lookup) or b""
            each = self._each
            track.stored.update(
                n
                for n in range(len(states) // each)
                if all(state in HERE for state in states[n * each : (n + 1) * each])
            )
        is_foreign = track.local > 0 and self.versions.is_cache_mixed
        is_ours = space is not None and track.space in ("", space)
        track.may_save = is_ours and not is_foreign and not track.is_apart
        track.space = space or ""

    def _save(self, track: Track, plan: StepPlan) -> None:
        if track.space != self.versions.space():  # other weights meanwhile: its KV is mixed
            track.may_save = False
            return
        if track.retry_at_s > self._clock():
            return
        numbers = find_unsaved(
            track.next, track.complete, len(track.hashes), track.stored, len(track.block_ids)
        )
        track.next = min(track.complete, len(track.hashes))
        if not numbers:
            return
        job = SaveJob(
            number=next(self._numbers),
            request_id=track.request_id,
            space=track.space,
            hashes=tuple(track.hashes[n] for n in numbers),
            block_ids=tuple(track.block_ids[n] for n in numbers),
        )
        track.stored.update(numbers)
        track.pending.add(job.number)
        self._jobs[job.number] = _Job(track, numbers, len(self._ranks))
        plan.saves.append(job)

    def take_report(self, report: StepReport) -> None:
        """What the workers did."""
        if report.weights:
            self._doubted_until_s = 0.0
        self.versions.hear(report.weights)
        for request_id in report.failed:
            track = self._tracks.get(request_id)
            if track is not None:
                track.may_load = False
                self._asked.pop(request_id, None)
        for number, workers in report.done.items():
            self._end_job(number, workers, is_kept=number not in report.dropped)

    def _end_job(self, number: int, workers: int, *, is_kept: bool) -> None:
        job = self._jobs.get(number)
        if job is None:
            return
        job.left -= workers
        job.is_kept = job.is_kept and is_kept
        if job.left > 0:
            return
        del self._jobs[number]
        track = job.track
        track.pending.discard(number)
        if job.is_kept:
            self._kept.append((track, job.numbers))
            return
        track.stored.difference_update(job.numbers)
        track.next = min(track.next, *job.numbers)
        track.retry_at_s = self._clock() + RETRY_S

    def take_kept(self) -> list[tuple[Track, list[int]]]:
        """The blocks that came to be in the store since the last call, by request."""
        kept, self._kept = self._kept, []
        return kept

    # ---- a request ends ------------------------------------------------------------------------

    def finish(self, request: Request) -> tuple[bool, dict[str, object] | None]:
        """Whether its blocks are still being read (the workers say when they are free), and what
        the response tells those who go on with it."""
        self._asked.pop(request.request_id, None)
        track = self._tracks.pop(request.request_id, None)
        if track is None or track.is_loading:
            return False, None
        told = self._tell(request, track)
        if not track.pending:
            return False, told
        self._finishing.append(request.request_id)
        return True, told

    def describe(self, request: Request, naming: Naming) -> dict[str, object]:
        """The manifest of a request that is about to end."""
        track = self._tracks.get(request.request_id)
        return make_manifest(
            naming,
            self.versions.space(),
            self._ranks,
            self._parts,
            request.block_hashes,
            track.stored if track is not None else (),
        )

    def _tell(self, request: Request, track: Track) -> dict[str, object] | None:
        """For the decode engine: what it will find, and where."""
        if not (request.kv_transfer_params or {}).get("do_remote_decode"):
            return None
        saved = 0
        while saved in track.stored:
            saved += 1
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "tensorcast": {"space": track.space, "blocks": saved, "node": self._node},
        }

    def take_counters(self) -> dict[str, float]:
        """What was decided since the last call."""
        return self._counters.take()

    def close(self) -> None:
        """Safe to repeat."""
        self._lookups.close()
