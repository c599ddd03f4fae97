"""Requests to the servers of engines: bounded in time and size, and answered by an error of ours
when a server is away or refuses. Everything blocks."""

from __future__ import annotations

import http.client
import json
import re
import urllib.error
import urllib.request
from typing import Final, TypeVar

import msgspec

from tensorcast.schema.errors import (
    Corrupt,
    ErrorBody,
    InvalidArgument,
    NotFound,
    TensorCastError,
    Unavailable,
    from_body,
)

ANSWER_BYTES_MAX: Final = 64 << 20
ERROR_BYTES_MAX: Final = 64 << 10
ERROR_CHARS_MAX: Final = 500
FETCH_S: Final = 5.0
T = TypeVar("T")


class EngineRefused(TensorCastError):
    """A server answers that it does not do what it was asked for. `status` is that of HTTP. Each is
    an error of another class, too: of the one that our back end in the engine raised, if it did;
    else InvalidArgument where the request was wrong, and Unavailable where the engine failed."""

    status = 0


_MARKED: Final = re.compile(r"TensorCast \[(\w+)\]: (.*) \[end\]", re.DOTALL)
_WRAPPED: Final = re.compile(
    r"(?:Call to \w+ method failed: )?(?:Worker failed with error '(.*)', please check .*|(.*))",
    re.DOTALL,
)
_kinds: Final[dict[type[TensorCastError], type[EngineRefused]]] = {}


def mark(error: TensorCastError) -> TensorCastError:
    """The same error with a text that is found again, with its class, in what the server answers:
    vLLM wraps the texts of errors into its own and drops the rest."""
    return type(error)(f"TensorCast [{error.code}]: {error} [end]")


def unwrap(text: str) -> TensorCastError:
    """The error in a server's answer, without what vLLM has put around it."""
    marked = _MARKED.search(text)
    if marked:
        return from_body(ErrorBody(code=marked[1], message=marked[2]))
    found = _WRAPPED.fullmatch(text)
    inner = next((part for part in found.groups() if part is not None), text) if found else text
    return TensorCastError(inner)


def fetch(url: str) -> bytes:
    """What is at an address of an engine, within some seconds. Raises as `ask`."""
    return ask(url, timeout_s=FETCH_S)


def ask(url: str, body: object = None, *, method: str | None = None, timeout_s: float) -> bytes:
    """The answer of a server; with a body, which is sent as JSON, a POST. Raises Unavailable when
    it does not answer, EngineRefused with what it says when it refuses, NotFound for what is not
    there, Corrupt when it answers without end."""
    content = None if body is None else json.dumps(body).encode()
    try:
        request = urllib.request.Request(
            url, content, {"Content-Type": "application/json"}, method=method
        )
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            found: bytes = answer.read(ANSWER_BYTES_MAX + 1)
    except urllib.error.HTTPError as error:
        with error:
            raise refusal(url, error.code, error.read(ERROR_BYTES_MAX)) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise Unavailable(
            f"{url} does not answer: {error}.", hint="Is the engine running?"
        ) from error
    if len(found) > ANSWER_BYTES_MAX:
        raise Corrupt(f"{url} answers more than {ANSWER_BYTES_MAX} bytes.")
    return found


def refusal(url: str, status: int, content: bytes) -> TensorCastError:
    """What a server that refuses says, out of the forms in which vLLM says it."""
    if status == http.client.NOT_FOUND:
        return NotFound(
            f"{url} is not there.",
            hint="Is that a vLLM server? What changes weights needs VLLM_SERVER_DEV_MODE=1 there.",
        )
    answer = parse(content)
    said = answer.get("error", answer.get("detail")) if isinstance(answer, dict) else None
    said = said.get("message", said) if isinstance(said, dict) else said
    error = unwrap(str(said or content.decode(errors="replace")).strip())
    text = error.message[:ERROR_CHARS_MAX]
    if type(error) is not TensorCastError:  # ours says all that there is to say
        return _refused(type(error), status, f"{url} refuses: {text}", "")
    is_ours = http.client.BAD_REQUEST <= status < http.client.INTERNAL_SERVER_ERROR
    kind = InvalidArgument if is_ours else Unavailable
    hint = "" if is_ours else "The log of the engine says more."
    return _refused(kind, status, f"{url} answers {status}: {text}", hint)


def _refused(kind: type[TensorCastError], status: int, text: str, hint: str) -> EngineRefused:
    if kind not in _kinds:
        _kinds[kind] = type(kind.__name__, (kind, EngineRefused), {"__doc__": kind.__doc__})
    refused = _kinds[kind](text, hint=hint)
    refused.status = status
    return refused


def parse(content: bytes) -> object:
    """The JSON of an answer; None when it is empty or none."""
    try:
        found: object = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return found


def decode(content: bytes | str, shape: type[T]) -> T:
    """The JSON of an answer of this shape. Raises Corrupt for any other."""
    try:
        return msgspec.json.decode(content, type=shape)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Corrupt(
            f"The answer of an engine cannot be read: {error}.",
            hint="Is that the address of a vLLM server?",
        ) from error


class _Model(msgspec.Struct, frozen=True):
    id: str


class _Models(msgspec.Struct, frozen=True):
    data: tuple[_Model, ...] = ()


def read_models(content: bytes) -> tuple[str, ...]:
    """The names under which a server serves models, out of its answer to /v1/models. Raises
    Corrupt."""
    return tuple(model.id for model in decode(content, _Models).data)
