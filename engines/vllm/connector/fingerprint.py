"""What weights are called when nobody says it: by what is in the files they were loaded from."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from threading import Thread
from typing import Final

import xxhash

LOGGER = logging.getLogger("vllm.tensorcast")

SUFFIXES: Final = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
READ_BYTES: Final = 8 << 20


def name_files(folder: Path) -> str | None:
    """A name for the contents of a model's files of weights; None when there are none. Reads them
    all. Raises OSError."""
    files = sorted(p for p in folder.iterdir() if p.suffix in SUFFIXES and p.is_file())
    if not files:
        return None
    whole = xxhash.xxh3_128()
    for path in files:
        whole.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        with path.open("rb", buffering=0) as file:
            while piece := file.read(READ_BYTES):
                whole.update(piece)
    return f"files:{whole.hexdigest()}"


def find_folder(model: str, revision: str | None) -> Path | None:
    """Where a model's files are on this machine: a folder, or in the cache of Hugging Face."""
    if Path(model).is_dir():
        return Path(model)
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return None
    try:
        found = try_to_load_from_cache(model, "config.json", revision=revision)
    except ValueError:
        return None
    return Path(found).parent if isinstance(found, str) else None


def begin_naming(model: str, revision: str | None) -> Future[str | None]:
    """The name of a model's weights, found out by a thread: it takes as long as reading them."""
    future: Future[str | None] = Future()
    work: Callable[[], None] = lambda: _name(future, model, revision)  # noqa: E731
    Thread(target=work, name="tensorcast-fingerprint", daemon=True).start()
    return future


def _name(future: Future[str | None], model: str, revision: str | None) -> None:
    try:
        folder = find_folder(model, revision)
        future.set_result(name_files(folder) if folder is not None else None)
    except OSError as error:
        LOGGER.warning("TensorCast: the files of %s cannot be read: %s", model, error)
        future.set_result(None)
