"""The blocks in engines' own caches: which engine holds which prefix, and how well it is known."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

Moment = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Makes the tables, empty."""
    op.create_table(
        "engine_views",
        sa.Column("engine", sa.Text, primary_key=True),
        sa.Column("life", sa.Text, nullable=False),
        sa.Column("is_exact", sa.Boolean, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("batch", sa.BigInteger, nullable=False),
        sa.Column("blocks", sa.BigInteger, nullable=False),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("at", Moment, nullable=False),
    )
    op.create_table(
        "engine_blocks",
        sa.Column("engine", sa.Text, primary_key=True),
        sa.Column("medium", sa.Text, primary_key=True),
        sa.Column("layer_group", sa.Integer, primary_key=True),
        sa.Column("hash", sa.LargeBinary, primary_key=True),
        sa.Column("prefix", sa.LargeBinary, nullable=False),
        sa.Column("block_tokens", sa.Integer, nullable=False),
        sa.Column("seq", sa.BigInteger, nullable=False),
    )
    op.create_index("engine_blocks_by_prefix", "engine_blocks", ["prefix"])


def downgrade() -> None:
    """Drops what was copied."""
    op.drop_table("engine_blocks")
    op.drop_table("engine_views")
