"""What happens to KV blocks: the copied events, and how much each node holds."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0003"
down_revision = "0002"

Moment = sa.DateTime(timezone=True)
INDEXES = (("kv_events_by_node", ["node", "seq"]), ("kv_events_by_space", ["space", "seq"]))


def upgrade() -> None:
    """Makes the tables, empty."""
    op.create_table(
        "kv_logs",
        sa.Column("epoch", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("created", sa.Text, nullable=False),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("updated_at", Moment, nullable=False, server_default=sa.text("now()")),
    )
    _create_events()
    op.create_table(
        "kv_nodes",
        sa.Column("node", sa.Text, primary_key=True),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("cleared_seq", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "kv_holdings",
        sa.Column("node", sa.Text, primary_key=True),
        sa.Column("tier", sa.Text, primary_key=True),
        sa.Column("space", sa.Text, primary_key=True),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("blocks", sa.BigInteger, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("at", Moment, nullable=False),
    )


def _create_events() -> None:
    op.create_table(
        "kv_events",
        sa.Column("log_epoch", sa.Integer, primary_key=True),
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("event_id", sa.Uuid, nullable=False),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("v", sa.BigInteger, nullable=False),
        sa.Column("at", Moment, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("cause", sa.Uuid),
        sa.Column("trace", sa.Text),
        sa.Column("node", sa.Text),
        sa.Column("epoch", sa.BigInteger),
        sa.Column("tier", sa.Text),
        sa.Column("space", sa.Text),
        sa.Column("blocks", sa.BigInteger),
        sa.Column("key_bytes", sa.Integer),
        sa.Column("keys", sa.LargeBinary),
        sa.Column("data", JSONB, nullable=False),
    )
    for name, columns in INDEXES:
        op.create_index(name, "kv_events", columns)
    # Hashes do not get smaller; uncompressed they are found faster.
    op.execute("ALTER TABLE kv_events ALTER COLUMN keys SET STORAGE EXTERNAL")
    # Old rows may be deleted (a retention), but none is ever changed.
    op.execute(
        "CREATE TRIGGER kv_events_stay BEFORE UPDATE ON kv_events"
        " FOR EACH ROW EXECUTE FUNCTION refuse_change_of_events()"
    )
    op.execute("ALTER TABLE kv_events ENABLE ALWAYS TRIGGER kv_events_stay")


def downgrade() -> None:
    """Drops what was copied. The KV log has what it still keeps."""
    for name in ("kv_holdings", "kv_nodes", "kv_events", "kv_logs"):
        op.drop_table(name)
