"""Prefill on one engine, decode on another: what a router in front of both does with a request.
Knows no vLLM; `examples/vllm_prefill_decode.py` is such a router.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from tensorcast.engines.vllm.calls import ask, parse
from tensorcast.engines.vllm.connector.inquiries import PARAMETERS
from tensorcast.schema.errors import TensorCastError

PREFILL_S: Final = 300.0
OF_THE_ANSWER: Final = ("max_completion_tokens", "min_tokens", "stream_options", "n", "best_of")
"""What a request says of an answer that the prefill engine does not give."""
_logger = logging.getLogger(__name__)


def prefill(
    url: str, path: str, request: Mapping[str, object], *, timeout_s: float = PREFILL_S
) -> dict[str, object]:
    """Has the engine at `url` compute the prompt of a request to `path` (`/v1/completions` or
    `/v1/chat/completions`), and returns the request for the decode engine. It is the same request
    where the prefill engine is away or refuses it: then the decode engine computes the prompt, or
    says what is wrong. Blocks."""
    decoding = dict(request)
    try:
        content = ask(f"{url.rstrip('/')}{path}", only_prompt(request), timeout_s=timeout_s)
    except TensorCastError as error:
        _logger.warning("the decode engine computes the prompt: %s", error)
        return decoding
    answer = parse(content)
    told = answer.get(PARAMETERS) if isinstance(answer, dict) else None
    if isinstance(told, dict):
        decoding[PARAMETERS] = told
    return decoding


def only_prompt(request: Mapping[str, object]) -> dict[str, object]:
    """The request for the prefill engine: one token, and what the decode engine is to be told.
    Pure."""
    kept = {name: value for name, value in request.items() if name not in OF_THE_ANSWER}
    return {**kept, "max_tokens": 1, "stream": False, PARAMETERS: {"do_remote_decode": True}}
