"""Two vLLM engines on this machine that share KV blocks: what one computed, the other one loads.

tcctl up && python examples/vllm_kv.py MODEL [PYTHON]

MODEL is a folder or a name of Hugging Face; PYTHON the interpreter that has vLLM (else this one).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request

import tensorcast as tc

CONNECTOR = {
    "kv_connector": "TensorCastConnector",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",  # vLLM's default would fail the request
}
PORTS = (8101, 8102)
READY_S_MAX = 300.0


def start(python: str, model: str, port: int) -> subprocess.Popen[bytes]:
    """An engine; the flag that matters is the last one."""
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", model]
    command += ["--served-model-name", "m", "--port", str(port), "--enforce-eager"]
    command += ["--kv-transfer-config", json.dumps(CONNECTOR)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def wait_ready(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + READY_S_MAX
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2).close()
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
        else:
            return
    sys.exit(f"The engine on port {port} did not start.")


def complete(port: int, prompt: str) -> tuple[str, float]:
    """What an engine makes of a prompt, and the seconds that it took."""
    body = {"model": "m", "prompt": prompt, "max_tokens": 8, "temperature": 0}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    begin = time.monotonic()
    with urllib.request.urlopen(request, timeout=300) as answer:
        text = json.load(answer)["choices"][0]["text"]
    return text, time.monotonic() - begin


def main(model: str, python: str) -> None:
    engines = [start(python, model, port) for port in PORTS]
    try:
        for port, engine in zip(PORTS, engines, strict=True):
            wait_ready(port, engine)
        first, second = PORTS
        for port in PORTS:  # the first request of an engine is slow by itself
            complete(port, f"Warm up on {port}.")
        prompt = "The quick brown fox jumps over the lazy dog. " * 60
        computed, computed_s = complete(first, prompt)
        time.sleep(0.5)  # it is saved beside the answer
        loaded, loaded_s = complete(second, prompt)
        print(f"computed by the first engine   {computed_s:.2f} s  {computed!r}")
        print(f"loaded by the second one       {loaded_s:.2f} s  {loaded!r}")
        with tc.connect() as client:
            for space in client.api.block_spaces():
                print(f"kept for both of them          {space}")
    finally:
        for engine in engines:
            engine.terminate()
        for engine in engines:
            engine.wait()


if __name__ == "__main__":
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("python", metavar="PYTHON", nargs="?", default=sys.executable)
    given = parser.parse_args()
    try:
        main(given.model, given.python)
    except (tc.TensorCastError, OSError) as error:
        sys.exit(f"Error: {error}")
