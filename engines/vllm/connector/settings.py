"""What `kv_connector_extra_config` may say, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from tensorcast.engines.vllm.connector.link import PATIENCE_S


@dataclass(frozen=True)
class Settings:
    """`context` and `node`: as for `tensorcast.connect`. `weights`: what the engine's weights are
    called, where neither our loader nor our weight transfer says it; the same name must never be
    given to two contents. `patience_s`: how long a mover or a node may be silent."""

    context: str | None = None
    node: str | None = None
    weights: str | None = None
    patience_s: float = PATIENCE_S


def read_settings(extra: Mapping[str, object]) -> Settings:
    """Raises ValueError for what is not known or has the wrong type."""
    known = {field.name for field in fields(Settings)}
    for name, value in extra.items():
        if name not in known:
            raise ValueError(
                f"kv_connector_extra_config has {name!r}, which TensorCastConnector does not know. "
                f"It knows {', '.join(sorted(known))}."
            )
        is_good = isinstance(value, int | float) if name == "patience_s" else isinstance(value, str)
        if not is_good or not value:
            raise ValueError(f"kv_connector_extra_config has {name}={value!r}.")
    return Settings(**extra)  # type: ignore[arg-type]  # looked at above
