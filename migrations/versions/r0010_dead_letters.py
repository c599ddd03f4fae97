"""The events that a projection could not take, and which fold the read models follow from."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"

Moment = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Makes the table, empty: the read models are made anew at the next start, and fill it."""
    op.create_table(
        "dead_letters",
        sa.Column("log", sa.Text, primary_key=True),
        sa.Column("log_epoch", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("aggregate_kind", sa.Text, nullable=False),
        sa.Column("aggregate_id", sa.Text, nullable=False),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("fault", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("parked_at", Moment, nullable=False, server_default=sa.text("now()")),
        sa.Column("tried_at", Moment),
        sa.Column("wanted_at", Moment),
    )
    op.create_index(
        "dead_letters_by_aggregate",
        "dead_letters",
        ["log", "log_epoch", "aggregate_kind", "aggregate_id", "seq"],
    )
    op.add_column("cursors", sa.Column("fold", sa.Text))


def downgrade() -> None:
    """Drops the list; the history has the events."""
    op.drop_column("cursors", "fold")
    op.drop_table("dead_letters")
