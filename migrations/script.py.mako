"""${message}."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}


def upgrade() -> None:
    """Makes it."""
    ${upgrades if upgrades else "raise NotImplementedError"}


def downgrade() -> None:
    """Takes it back."""
    ${downgrades if downgrades else "raise NotImplementedError"}
