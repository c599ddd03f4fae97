"""The state of each aggregate, as of the position of the persister."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.schema import SchemaItem
from sqlalchemy.types import TypeEngine

revision = "0002"
down_revision = "0001"

T = TypeVar("T")
Moment = sa.DateTime(timezone=True)


def _required(name: str, kind: TypeEngine[T] | type[TypeEngine[T]]) -> sa.Column[T]:
    return sa.Column(name, kind, nullable=False)


def _tables() -> dict[str, Sequence[SchemaItem]]:
    """The columns of each read model between those that all have."""
    return {
        "artifacts": (
            _required("kind", sa.Text),
            _required("size_bytes", sa.BigInteger),
            _required("tensors", sa.Integer),
            _required("pinned", sa.Boolean),
            _required("labels", JSONB),
            _required("sealed_at", Moment),
        ),
        "keys": (
            _required("artifact", sa.Text),
            _required("moves", sa.BigInteger),
            _required("moved_at", Moment),
        ),
        "replicas": (
            _required("artifact", sa.Text),
            _required("node", sa.Text),
            _required("tier", sa.Text),
            _required("epoch", sa.BigInteger),
            _required("chunks_ready", sa.BigInteger),
            _required("chunks_total", sa.BigInteger),
        ),
        "operations": (
            _required("kind", sa.Text),
            _required("artifact", sa.Text),
            _required("node", sa.Text),
            _required("policy", sa.Text),
            sa.Column("cause", sa.Uuid),
            _required("attempt", sa.BigInteger),
            _required("bytes_moved", sa.BigInteger),
            sa.Column("fault", sa.Text),
            _required("issued_at", Moment),
            sa.Column("ended_at", Moment),
        ),
        "nodes": (
            _required("epoch", sa.BigInteger),
            _required("address", sa.Text),
            _required("cordoned", sa.Boolean),
            _required("draining", sa.Boolean),
            _required("labels", JSONB),
            _required("joined_at", Moment),
        ),
        "leases": (
            _required("artifact", sa.Text),
            sa.Column("node", sa.Text),
            _required("holder", sa.Text),
            _required("ttl_s", sa.Double),
            _required("acquired_at", Moment),
        ),
    }


INDEXED = {
    "keys": ("artifact",),
    "replicas": ("artifact", "node"),
    "operations": ("artifact", "node"),
    "leases": ("artifact",),
}


def upgrade() -> None:
    """Makes the read models, empty."""
    for name, columns in _tables().items():
        op.create_table(
            name,
            sa.Column("id", sa.Text, primary_key=True),
            _required("status", sa.Text),
            *columns,
            _required("seq", sa.BigInteger),
            _required("state", JSONB),
        )
        op.create_index(f"{name}_by_seq", name, ["seq"])
        for column in INDEXED.get(name, ()):
            op.create_index(f"ix_{name}_{column}", name, [column])


def downgrade() -> None:
    """Drops the read models. They can be made anew from the history."""
    for name in _tables():
        op.drop_table(name)
