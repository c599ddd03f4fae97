"""The turns of one suite. Every contender starts once and stays; in each round all of them have
their turn with each of their works, in an order that chance (with a seed) decides anew. The first
round warms up and is not kept. Bytes are cleared before and compared after each turn, outside of
the timed part. Who fails is left out from then on and named; the others go on.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from harness import machine
from harness.catalog import Contender, Suite, Work
from harness.guard import VARIABLE, guarded_folder
from harness.install import Environments
from harness.memory import back_pages, clear, compare, create_memory, fill, map_memory
from harness.processes import kill_tree, signal_tree, tree_cpu_seconds
from harness.remote import Remote, WorkerError
from harness.results import Entrant, NotRun, Sample, SuiteResult

START_S = 120.0
SLOW_S = 5.0
Say = Callable[[str], None]


class Stage:
    """The memory and the folder that the contenders of a suite share."""

    def __init__(self, suite: Suite, seed: int, folder: Path) -> None:
        self.folder = folder
        self.source_fd = create_memory(suite.source_bytes)
        self.target_fd = create_memory(suite.target_bytes)
        self.source = map_memory(self.source_fd, suite.source_bytes)
        self.target = map_memory(self.target_fd, suite.target_bytes)
        fill(self.source, seed)


class Player:
    """A contender that is running."""

    def __init__(
        self, suite: Suite, contender: Contender, stage: Stage, environments: Environments
    ) -> None:
        self.contender = contender
        self.works = list(suite.works_of(contender))
        self.remote = Remote(
            contender.worker,
            python=environments.python(contender.environment),
            environ={
                **environments.environ(contender.environment),
                **contender.environ,
                VARIABLE: str(stage.folder),
            },
            descriptors=(stage.source_fd, stage.target_fd),
            log=str(stage.folder / f"{_file_name(contender.name)}.log"),
        )
        self.options = {
            "source_fd": stage.source_fd,
            "source_bytes": len(stage.source),
            "target_fd": stage.target_fd,
            "target_bytes": len(stage.target),
            "folder": str(stage.folder),
            "cache": str(environments.cache),
            "works": {w.name: {"size": w.size, **w.about} for w in self.works},
            **contender.options,
        }

    def start(self) -> str:
        """Makes it ready; answers its version. Raises WorkerError."""
        facts = self.remote.call("start", START_S, options=self.options)
        return str(facts.get("version", "")) if isinstance(facts, dict) else ""

    def rest(self) -> None:
        """Between turns; `play` wakes it."""
        if self.contender.rests:
            signal_tree(self.remote.pid, signal.SIGSTOP)

    def play(self, work: Work, turn: int, stage: Stage) -> Sample:
        """One turn. Raises WorkerError, ValueError when the bytes are wrong."""
        ask = self.remote.call
        timeout_s = self.contender.timeout_s
        if self.contender.rests:
            signal_tree(self.remote.pid, signal.SIGCONT)
        is_compared = work.is_compared and self.contender.is_compared
        if is_compared:
            clear(stage.target[: work.size])
        ask("prepare", timeout_s, work=work.name, turn=turn)
        if work.fresh:
            back_pages(work.fresh)
        cpu, busy = tree_cpu_seconds(self.remote.pid), machine.busy_seconds()
        found = ask("run", timeout_s, work=work.name, turn=turn)
        ask("settle", timeout_s, work=work.name)
        cpu = tree_cpu_seconds(self.remote.pid) - cpu
        busy = machine.busy_seconds() - busy
        if is_compared:
            compare(stage.target[: work.size], stage.source[: work.size])
        ask("check", timeout_s, work=work.name, turn=turn)
        self.rest()
        return make_sample(self.contender, work, turn, found, cpu, busy)

    def close(self) -> None:
        """Ends the whole tree."""
        if self.contender.rests:
            signal_tree(self.remote.pid, signal.SIGCONT)
        try:
            self.remote.close()
        finally:
            kill_tree(self.remote.pid)


def make_sample(
    contender: Contender, work: Work, turn: int, found: object, cpu_s: float, busy_s: float
) -> Sample:
    """The sample of an answer of `run`; what a worker knows better (`cpu_s`, `bytes`) wins."""
    answer = dict(found) if isinstance(found, dict) else {}
    return Sample(
        contender=contender.name,
        work=work.name,
        turn=turn,
        seconds=answer.pop("seconds"),
        bytes=int(answer.pop("bytes", work.size)),
        cpu_s=answer.pop("cpu_s", cpu_s),
        others_cpu_s=max(0.0, busy_s - cpu_s),
        load=round(machine.load(), 2),
        p50_us=answer.pop("p50_us", None),
        p99_us=answer.pop("p99_us", None),
        facts=answer,
    )


def run_suite(
    suite: Suite, environments: Environments, *, rounds: int, seed: int, logs: Path, say: Say
) -> SuiteResult:
    """Everything of one suite; never raises for a contender that fails."""
    result = SuiteResult(
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        seed=seed,
        rounds=rounds,
        works={work.name: work.text for work in suite.works},
        not_run=[NotRun(contender=name, why=why) for name, why in suite.unlisted],
    )
    logs.mkdir(parents=True, exist_ok=True)
    with guarded_folder() as folder:
        stage = Stage(suite, seed, folder)
        players: list[Player] = []
        try:
            for contender in suite.contenders:
                enter(suite, contender, stage, environments, players, result, say)
            play_rounds(players, stage, result, say)
        finally:
            for player in reversed(players):
                player.close()
            keep_logs(folder, logs)
    return result


def enter(
    suite: Suite,
    contender: Contender,
    stage: Stage,
    environments: Environments,
    players: list[Player],
    result: SuiteResult,
    say: Say,
) -> None:
    """Starts one contender, or writes down why it does not run."""
    needed = (contender.environment, *contender.needs)
    missing = [why for name in needed if (why := environments.missing(name))]
    if missing:
        result.not_run.append(NotRun(contender=contender.name, why=missing[0]))
        return
    say(f"{suite.name}: starting {contender.name}")
    player = Player(suite, contender, stage, environments)
    try:
        version = player.start()
    except WorkerError as error:
        player.close()
        say(f"{suite.name}: {contender.name} does not run: {error}")
        result.not_run.append(NotRun(contender=contender.name, why=str(error)))
        return
    player.rest()
    players.append(player)
    result.entrants.append(
        Entrant(
            name=contender.name,
            kind=contender.kind,
            over=contender.over,
            version=version,
            note=contender.note,
        )
    )


def play_rounds(players: list[Player], stage: Stage, result: SuiteResult, say: Say) -> None:
    """All turns of all rounds; the samples go into the result."""
    chance = random.Random(result.seed)
    for turn in range(result.rounds + 1):
        say(f"round {turn} of {result.rounds}" if turn else "warming up")
        order = [(p, group) for p in players for group in groups_of(p.works)]
        chance.shuffle(order)
        for player, group in order:
            for work in [w for w in player.works if w.group == group]:
                sample = try_turn(player, work, turn, stage, result, say)
                if sample is None:
                    is_lost = player.remote.is_lost
                    player.works = [w for w in player.works if w.group != group and not is_lost]
                    break
                if turn:
                    result.samples.append(sample)


def groups_of(works: list[Work]) -> list[str]:
    """The groups, each once, in their order."""
    return list(dict.fromkeys(work.group for work in works))


def try_turn(
    player: Player, work: Work, turn: int, stage: Stage, result: SuiteResult, say: Say
) -> Sample | None:
    """One turn, or None and a line about the failure."""
    begun = time.monotonic()
    try:
        sample = player.play(work, turn, stage)
        if time.monotonic() - begun > SLOW_S:
            all_s = time.monotonic() - begun
            say(f"{player.contender.name}, {work.name}: {sample.seconds:.1f} s of {all_s:.0f} s")
        return sample
    except (WorkerError, ValueError) as error:
        say(f"{player.contender.name}, {work.name}: {error}")
        result.not_run.append(
            NotRun(contender=player.contender.name, work=work.name, why=str(error))
        )
        player.rest()
        return None


def keep_logs(folder: Path, logs: Path) -> None:
    """Copies what the workers printed to where it can be read after the run."""
    for log in folder.glob("*.log"):
        (logs / log.name).write_bytes(log.read_bytes())


def _file_name(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name)
