"""How far long works on the store are."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"

Moment = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Makes the table, empty."""
    op.create_table(
        "store_jobs",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("phase", sa.Text, nullable=False),
        sa.Column("done", sa.BigInteger, nullable=False),
        sa.Column("total", sa.BigInteger, nullable=False),
        sa.Column("problem", sa.Text),
        sa.Column("started_at", Moment, nullable=False, server_default=sa.text("now()")),
        sa.Column("told_at", Moment, nullable=False, server_default=sa.text("now()")),
        sa.Column("ended_at", Moment),
    )


def downgrade() -> None:
    """Drops what was told of works."""
    op.drop_table("store_jobs")
