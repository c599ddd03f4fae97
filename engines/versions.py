"""What weights are called: `policy@7`, and not only where they lie."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tensorcast.schema.ids import Key, family_of, number_of

if TYPE_CHECKING:
    from tensorcast.client import Client


def find_version(client: Client, key: str) -> tuple[str, str]:
    """The version that a key stands for (`policy@7` for `policy`, if that is what it names), and
    its artifact. Raises NotFound."""
    info = client.api.artifact(key)
    return name_version(key, info.keys) or key, info.id


def name_version(key: str, keys: Iterable[str]) -> str:
    """The newest version of a key among all keys of an artifact; empty when there is none."""
    versions = [one for one in keys if one != key and family_of(Key(one)) == key]
    return max(versions, key=lambda one: number_of(Key(one)), default="")
