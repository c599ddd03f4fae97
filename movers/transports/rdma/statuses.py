"""What follows from the status of a completion. Pure."""

from __future__ import annotations

from typing import Final

import msgspec


class Meaning(msgspec.Struct, frozen=True, kw_only=True):
    """One half sentence on what went wrong; `is_path`: the way to the peer or the peer itself is
    lost, so that another queue pair over the same devices would fare no better."""

    text: str
    is_path: bool = False


SUCCESS: Final = 0

MEANINGS: Final = {
    1: Meaning(text="a READ was longer than its buffer (LOC_LEN_ERR)"),
    2: Meaning(text="this node's adapter refused a request (LOC_QP_OP_ERR)"),
    3: Meaning(text="this node's adapter refused a request (LOC_EEC_OP_ERR)"),
    4: Meaning(text="this node's memory is not registered as it should be (LOC_PROT_ERR)"),
    5: Meaning(text="it was given up after an earlier error (WR_FLUSH_ERR)"),
    6: Meaning(text="a memory window could not be bound (MW_BIND_ERR)"),
    7: Meaning(text="the peer's adapter answered nonsense (BAD_RESP_ERR)"),
    8: Meaning(text="this node's memory may not be written to (LOC_ACCESS_ERR)"),
    9: Meaning(text="the peer's adapter refused the request (REM_INV_REQ_ERR)"),
    10: Meaning(text="the peer does not lend this memory any more (REM_ACCESS_ERR)"),
    11: Meaning(text="the peer's adapter failed (REM_OP_ERR)"),
    12: Meaning(text="the peer's adapter does not answer (RETRY_EXC_ERR)", is_path=True),
    13: Meaning(text="the peer takes no messages (RNR_RETRY_EXC_ERR)", is_path=True),
    14: Meaning(text="this node's adapter failed (LOC_RDD_VIOL_ERR)"),
    15: Meaning(text="the peer's adapter refused the request (REM_INV_RD_REQ_ERR)"),
    16: Meaning(text="the request was aborted (REM_ABORT_ERR)"),
    17: Meaning(text="the adapter has an invalid context (INV_EECN_ERR)"),
    18: Meaning(text="the adapter has an invalid context (INV_EEC_STATE_ERR)"),
    19: Meaning(text="this node's adapter has a fatal fault (FATAL_ERR)", is_path=True),
    20: Meaning(text="the adapter took too long (RESP_TIMEOUT_ERR)", is_path=True),
    21: Meaning(text="the adapter has a fault (GENERAL_ERR)"),
}
"""By the numbers of `enum ibv_wc_status` (rdma-core, libibverbs/verbs.h)."""


def meaning(status: int) -> Meaning:
    """What a status other than SUCCESS says."""
    return MEANINGS.get(status, Meaning(text=f"the adapter reports error {status}"))
