"""The hash chain over the events, for those that are there already as well."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"

# As `schema/chain.py` hashes them: 256 hashes a row.
CHAIN_ALL = """
DO $$
DECLARE
    one record;
    hash bytea := decode(repeat('00', 32), 'hex');
    subject_bytes bytea;
    hashes bytea := '';
    chained_epoch integer := 0;
    chained_seq bigint := 0;
BEGIN
    FOR one IN SELECT log_epoch, seq, subject, payload FROM events ORDER BY log_epoch, seq LOOP
        IF length(hashes) > 0 AND (length(hashes) >= 8192 OR chained_epoch <> one.log_epoch)
        THEN
            INSERT INTO chain VALUES (chained_epoch, chained_seq, hashes);
            hashes := '';
        END IF;
        subject_bytes := convert_to(one.subject, 'UTF8');
        hash := sha256(
            hash || int4send(one.log_epoch) || int8send(one.seq)
            || int4send(length(subject_bytes)) || subject_bytes || one.payload
        );
        hashes := hashes || hash;
        chained_epoch := one.log_epoch;
        chained_seq := one.seq;
    END LOOP;
    IF length(hashes) > 0 THEN
        INSERT INTO chain VALUES (chained_epoch, chained_seq, hashes);
    END IF;
END
$$
"""
STAY = (
    "CREATE TRIGGER chain_stays BEFORE UPDATE OR DELETE ON chain"
    " FOR EACH ROW EXECUTE FUNCTION refuse_change_of_events()",
    "CREATE TRIGGER chain_stays_all BEFORE TRUNCATE ON chain"
    " FOR EACH STATEMENT EXECUTE FUNCTION refuse_change_of_events()",
    "ALTER TABLE chain ENABLE ALWAYS TRIGGER chain_stays",
    "ALTER TABLE chain ENABLE ALWAYS TRIGGER chain_stays_all",
)


def upgrade() -> None:
    """Makes the chain of all events."""
    op.create_table(
        "chain",
        sa.Column("log_epoch", sa.Integer, primary_key=True),
        sa.Column("last_seq", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("hashes", sa.LargeBinary, nullable=False),
    )
    # Hashes do not get smaller.
    op.execute("ALTER TABLE chain ALTER COLUMN hashes SET STORAGE EXTERNAL")
    op.execute(CHAIN_ALL)
    for statement in STAY:
        op.execute(statement)


def downgrade() -> None:
    """Drops the chain. It can be made anew from the events."""
    op.drop_table("chain")
