"""Plans: the programs that were submitted, and how far each is."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0011"
down_revision = "0010"

Moment = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Makes the read model, empty."""
    op.create_table(
        "plans",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("steps", sa.BigInteger, nullable=False),
        sa.Column("fault", sa.Text),
        sa.Column("submitted_at", Moment, nullable=False),
        sa.Column("ended_at", Moment),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("state", JSONB, nullable=False),
    )
    op.create_index("plans_by_seq", "plans", ["seq"])


def downgrade() -> None:
    """Drops the read model. It can be made anew from the history."""
    op.drop_table("plans")
