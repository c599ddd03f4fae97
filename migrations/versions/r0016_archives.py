"""Which events lie in files, and where."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"

Moment = sa.DateTime(timezone=True)


def upgrade() -> None:
    """Makes the table, empty."""
    op.create_table(
        "archives",
        sa.Column("log_epoch", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("last", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("first", sa.BigInteger, nullable=False),
        sa.Column("folder", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("at_first", Moment, nullable=False),
        sa.Column("at_last", Moment, nullable=False),
        sa.Column("made_at", Moment, nullable=False, server_default=sa.text("now()")),
        sa.Column("dropped_at", Moment),
        sa.Column("told_at", Moment),
    )


def downgrade() -> None:
    """Drops the list. Refused when the files have events that the tables lack."""
    dropped = sa.text("SELECT max(last) FROM archives WHERE dropped_at IS NOT NULL")
    last = op.get_bind().execute(dropped).scalar()
    if last is not None:
        raise RuntimeError(
            f"The events up to {last} lie in archives, which an older release does not know."
            " Give it an empty database: it is filled from the log."
        )
    op.drop_table("archives")
