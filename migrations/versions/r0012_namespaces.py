"""The rules of namespaces: who may do what with the keys that begin with a name."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    """Makes the read model, empty."""
    op.create_table(
        "namespaces",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("state", JSONB, nullable=False),
    )
    op.create_index("namespaces_by_seq", "namespaces", ["seq"])


def downgrade() -> None:
    """Drops the read model. It can be made anew from the history."""
    op.drop_table("namespaces")
