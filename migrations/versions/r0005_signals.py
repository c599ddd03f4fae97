"""The topics of signals: how many were emitted on each, and where the last one is."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0005"
down_revision = "0004"

Moment = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Makes the read model, empty."""
    op.create_table(
        "signals",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("emitted", sa.BigInteger, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("first_at", Moment, nullable=False),
        sa.Column("last_at", Moment, nullable=False),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("state", JSONB, nullable=False),
    )
    op.create_index("signals_by_seq", "signals", ["seq"])


def downgrade() -> None:
    """Drops the read model. It can be made anew from the history."""
    op.drop_table("signals")
