"""The terms of those who write: who was paused can write nothing when another has taken over."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    """Terms count from 1; 0 is before the first."""
    op.add_column(
        "cursors", sa.Column("term", sa.BigInteger, nullable=False, server_default=sa.text("0"))
    )


def downgrade() -> None:
    """The lock alone decides again."""
    op.drop_column("cursors", "term")
