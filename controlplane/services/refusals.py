"""What policies answered in vain: commands that the cluster refused when they were carried out.

Kept in memory, by each control plane for itself since its start: a word for whoever writes a
policy, no fact of the cluster.
"""

from __future__ import annotations

import msgspec

NAMES_MAX = 1000
TEXT_CHARS_MAX = 500


class Refusal(msgspec.Struct, frozen=True):
    """So many commands of a policy were refused; `last` says why the last one was, and to which
    event it was the answer."""

    times: int = 0
    last: str = ""


NOTHING = Refusal()


class Refusals:
    """The refusals of each policy. Modified by `note` alone."""

    def __init__(self) -> None:
        self._found: dict[str, Refusal] = {}

    def note(self, policy: str, seq: int, why: str) -> None:
        """Counts one."""
        if policy not in self._found and len(self._found) >= NAMES_MAX:
            return
        text = f"event {seq}: {' '.join(why.split())}"[:TEXT_CHARS_MAX]
        self._found[policy] = Refusal(self.of(policy).times + 1, text)

    def of(self, policy: str) -> Refusal:
        """Those of a policy."""
        return self._found.get(policy, NOTHING)
