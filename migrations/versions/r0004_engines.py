"""Inference engines: which run, and which weights they serve."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0004"
down_revision = "0003"

Moment = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Makes the read model, empty: no release before could write its events."""
    op.create_table(
        "engines",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("status", sa.Text, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("node", sa.Text),
        sa.Column("life", sa.Text, nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("url", sa.Text, nullable=False),
        sa.Column("weights", sa.Text, nullable=False),
        sa.Column("artifact", sa.Text),
        sa.Column("since", Moment),
        sa.Column("registered_at", Moment, nullable=False),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("state", JSONB, nullable=False),
    )
    op.create_index("engines_by_seq", "engines", ["seq"])
    for column in ("node", "artifact"):
        op.create_index(f"ix_engines_{column}", "engines", [column])


def downgrade() -> None:
    """Drops the read model. It can be made anew from the history."""
    op.drop_table("engines")
