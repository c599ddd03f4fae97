"""The history in partitions by position, so that what is old can go at once.

The table that is there becomes the first of them as it is: no row is written anew, but Postgres
reads it once, to see that all rows belong there. The persister makes the next ones.
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"

FIRST: Final = "events_first"
PARTITION_EVENTS: Final = 1 << 18
INDEXES: Final = (
    ("events_by_aggregate", "(aggregate_kind, aggregate_id, seq)"),
    ("events_by_artifact", "(artifact, seq) WHERE artifact IS NOT NULL"),
    ("events_by_node", "(node, seq) WHERE node IS NOT NULL"),
    ("events_by_type", "(type, seq)"),
    ("events_by_actor", "(actor, seq)"),
    ("events_by_cause", "(cause) WHERE cause IS NOT NULL"),
    ("events_by_id", "(event_id)"),
    ("events_by_time", "(at, seq)"),
    (
        "events_by_previous_artifact",
        "((data ->> 'previous'::text), seq) WHERE aggregate_kind = 'key'::text",
    ),
)
TRIGGER: Final = (
    "CREATE TRIGGER events_stay BEFORE UPDATE OR DELETE ON events"
    " FOR EACH ROW EXECUTE FUNCTION refuse_change_of_events()",
    # Also for a session that says it is a replica.
    "ALTER TABLE events ENABLE ALWAYS TRIGGER events_stay",
)
TRIGGER_OF_ALL: Final = (
    "CREATE TRIGGER events_stay_all BEFORE TRUNCATE ON events"
    " FOR EACH STATEMENT EXECUTE FUNCTION refuse_change_of_events()",
    "ALTER TABLE events ENABLE ALWAYS TRIGGER events_stay_all",
)
LAST: Final = sa.text(
    """
    (SELECT log_epoch, seq FROM cursors WHERE name = 'persister' AND seq > 0
    UNION ALL (SELECT log_epoch, seq FROM events ORDER BY log_epoch DESC, seq DESC LIMIT 1))
    ORDER BY log_epoch DESC, seq DESC LIMIT 1
    """
)
GRANTS: Final = sa.text(
    """
    SELECT format('GRANT %s ON events TO %s', acl.privilege_type,
        CASE WHEN acl.grantee = 0 THEN 'PUBLIC'
        ELSE quote_ident(pg_get_userbyid(acl.grantee)) END)
    FROM pg_class AS c, aclexplode(c.relacl) AS acl
    WHERE c.oid = to_regclass(:name) AND acl.grantee <> c.relowner
    """
)


def upgrade() -> None:
    """Makes the history the first partition of a table with the same name, indexes, triggers and
    grants."""
    connection = op.get_bind()
    last = connection.execute(LAST).first()
    log_epoch, seq = last or (1, 0)
    room = (seq // PARTITION_EVENTS + 1) * PARTITION_EVENTS
    op.execute("DROP TRIGGER events_stay ON events")
    _rename("events", FIRST)
    op.execute(f"CREATE TABLE events (LIKE {FIRST}) PARTITION BY RANGE (log_epoch, seq)")
    op.execute("ALTER TABLE events ADD PRIMARY KEY (log_epoch, seq)")
    for name, what in INDEXES:
        op.execute(f"CREATE INDEX {name} ON events {what}")
    for grant in connection.execute(GRANTS, {"name": FIRST}).scalars().all():
        op.execute(grant)
    op.execute(
        f"ALTER TABLE events ATTACH PARTITION {FIRST}"
        f" FOR VALUES FROM (MINVALUE, MINVALUE) TO ({log_epoch:d}, {room + 1:d})"
    )
    for statement in (*TRIGGER, *TRIGGER_OF_ALL):
        op.execute(statement)
    op.add_column(
        "cursors", sa.Column("room", sa.BigInteger, nullable=False, server_default=sa.text("0"))
    )


def _rename(old: str, new: str) -> None:
    """Renames a table with its key and its indexes."""
    op.execute(f"ALTER TABLE {old} RENAME TO {new}")
    op.execute(f"ALTER TABLE {new} RENAME CONSTRAINT {old}_pkey TO {new}_pkey")
    for name, _ in INDEXES:
        suffix = name.removeprefix("events")
        op.execute(f"ALTER INDEX IF EXISTS {old}{suffix} RENAME TO {new}{suffix}")


def downgrade() -> None:
    """One table again: what is in later partitions is copied into the first one."""
    op.drop_column("cursors", "room")
    op.execute(f"ALTER TABLE events DETACH PARTITION {FIRST}")
    op.execute(f"INSERT INTO {FIRST} SELECT * FROM events")
    op.execute("DROP TABLE events")
    _rename(FIRST, "events")
    for statement in TRIGGER:
        op.execute(statement)
