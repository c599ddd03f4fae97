"""The policies: which run, with which parameters, and which were stopped, and why."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    """Makes the read model, empty."""
    op.create_table(
        "policies",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("parameters", JSONB, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("changed_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("state", JSONB, nullable=False),
    )
    op.create_index("policies_by_seq", "policies", ["seq"])


def downgrade() -> None:
    """Drops the read model. It can be made anew from the history."""
    op.drop_table("policies")
