"""Snapshots of the fold: any moment of a long history opens from the nearest one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def _key() -> tuple[sa.Column[object], ...]:
    return (
        sa.Column("fold", sa.Text, primary_key=True),
        sa.Column("log_epoch", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    )


def upgrade() -> None:
    """Makes the tables, empty: the control plane fills them from the history."""
    op.create_table(
        "snapshots",
        *_key(),
        sa.Column("after", sa.BigInteger, nullable=False),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("event_id", sa.Uuid, nullable=False),
        sa.Column("skipped", sa.BigInteger, nullable=False),
        sa.Column("states", sa.BigInteger, nullable=False),
        sa.Column("parts", sa.Integer, nullable=False),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column(
            "made_at",
            sa.DateTime(timezone=True),
            nullable=False,
            server_default=sa.text("now()"),
        ),
    )
    op.create_index("snapshots_by_seq", "snapshots", ["seq"])
    op.create_table(
        "snapshot_parts",
        *_key(),
        sa.Column("part", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("payload", sa.LargeBinary, nullable=False),
    )
    # They are compressed already.
    op.execute("ALTER TABLE snapshot_parts ALTER COLUMN payload SET STORAGE EXTERNAL")


def downgrade() -> None:
    """Drops the snapshots. They can be made anew from the history."""
    op.drop_table("snapshot_parts")
    op.drop_table("snapshots")
