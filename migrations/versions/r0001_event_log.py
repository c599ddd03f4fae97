"""The history, append-only, and how far it goes."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0001"
down_revision = None

Moment = sa.DateTime(timezone=True)

REFUSE = """
CREATE FUNCTION refuse_change_of_events() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'events are never changed and never removed'
        USING ERRCODE = 'insufficient_privilege',
              HINT = 'An event is a fact. Append another one.';
END
$$
"""
TRIGGERS = (
    "CREATE TRIGGER events_stay BEFORE UPDATE OR DELETE ON events"
    " FOR EACH ROW EXECUTE FUNCTION refuse_change_of_events()",
    "CREATE TRIGGER events_stay_all BEFORE TRUNCATE ON events"
    " FOR EACH STATEMENT EXECUTE FUNCTION refuse_change_of_events()",
    # Also for a session that says it is a replica.
    "ALTER TABLE events ENABLE ALWAYS TRIGGER events_stay",
    "ALTER TABLE events ENABLE ALWAYS TRIGGER events_stay_all",
)


def upgrade() -> None:
    """Makes `events` and `cursors`."""
    _create_events()
    _create_indexes()
    op.execute(REFUSE)
    for statement in TRIGGERS:
        op.execute(statement)
    op.create_table(
        "cursors",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("log_epoch", sa.Integer, nullable=False),
        sa.Column("seq", sa.BigInteger, nullable=False),
        sa.Column("event_id", sa.Uuid),
        sa.Column("updated_at", Moment, nullable=False, server_default=sa.text("now()")),
    )


def _create_events() -> None:
    op.create_table(
        "events",
        sa.Column("log_epoch", sa.Integer, primary_key=True),
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("event_id", sa.Uuid, nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("aggregate_kind", sa.Text, nullable=False),
        sa.Column("aggregate_id", sa.Text, nullable=False),
        sa.Column("type", sa.Text, nullable=False),
        sa.Column("v", sa.BigInteger, nullable=False),
        sa.Column("at", Moment, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("cause", sa.Uuid),
        sa.Column("trace", sa.Text),
        sa.Column("artifact", sa.Text),
        sa.Column("node", sa.Text),
        sa.Column("data", JSONB, nullable=False),
        sa.Column("payload", sa.LargeBinary, nullable=False),
    )


def _create_indexes() -> None:
    for name, columns, where in (
        ("events_by_aggregate", ["aggregate_kind", "aggregate_id", "seq"], None),
        ("events_by_artifact", ["artifact", "seq"], "artifact IS NOT NULL"),
        ("events_by_node", ["node", "seq"], "node IS NOT NULL"),
        ("events_by_type", ["type", "seq"], None),
        ("events_by_actor", ["actor", "seq"], None),
        ("events_by_cause", ["cause"], "cause IS NOT NULL"),
        ("events_by_id", ["event_id"], None),
        ("events_by_time", ["at", "seq"], None),
    ):
        condition = sa.text(where) if where else None
        op.create_index(name, "events", columns, postgresql_where=condition)
    op.create_index(
        "events_by_previous_artifact",
        "events",
        [sa.text("(data ->> 'previous'::text)"), "seq"],
        postgresql_where=sa.text("aggregate_kind = 'key'::text"),
    )


def downgrade() -> None:
    """Drops the history. The log still has it."""
    op.drop_table("cursors")
    op.drop_table("events")
    op.execute("DROP FUNCTION refuse_change_of_events()")
