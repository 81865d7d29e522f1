"""The first tables.

Revision ID: 0001
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def _study_id() -> sa.Column[int]:
    return sa.Column("study_id", sa.Integer(), nullable=False)


def _foreign_key(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["study_id"], ["at_studies.id"], name=f"fk_{table}_study_id", ondelete="CASCADE"
    )


def upgrade() -> None:
    """Create all tables."""
    op.create_table(
        "at_meta",
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_at_meta"),
    )
    op.create_table(
        "at_studies",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("created_at", sa.Float(53), nullable=False),
        sa.Column("updated_at", sa.Float(53), nullable=False),
        sa.Column("space_fingerprint", sa.String(128), nullable=False),
        sa.Column("context", sa.String(128), nullable=False),
        sa.Column("record", sa.Text(), nullable=False),
        sa.Column("verdict", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_at_studies"),
        sa.UniqueConstraint("name", name="uq_at_studies_name"),
    )
    op.create_index("ix_at_studies_updated_at", "at_studies", ["updated_at"])
    op.create_table(
        "at_trials",
        sa.Column("id", sa.Integer(), nullable=False),
        _study_id(),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("origin", sa.String(200), nullable=False),
        sa.Column("backend", sa.String(100), nullable=False),
        sa.Column("key", sa.String(128), nullable=False),
        sa.Column("context", sa.String(128), nullable=False),
        sa.Column("created_at", sa.Float(53), nullable=False),
        sa.Column("record", sa.Text(), nullable=False),
        _foreign_key("at_trials"),
        sa.PrimaryKeyConstraint("id", name="pk_at_trials"),
        sa.UniqueConstraint("study_id", "number", name="uq_at_trials_study_id_number"),
    )
    op.create_index("ix_at_trials_key", "at_trials", ["key"])
    _create_launch_tables()


def _create_launch_tables() -> None:
    op.create_table(
        "at_remeasurements",
        sa.Column("id", sa.Integer(), nullable=False),
        _study_id(),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("role", sa.String(20), nullable=False),
        sa.Column("trial", sa.Integer(), nullable=False),
        sa.Column("context", sa.String(128), nullable=False),
        sa.Column("created_at", sa.Float(53), nullable=False),
        sa.Column("record", sa.Text(), nullable=False),
        _foreign_key("at_remeasurements"),
        sa.PrimaryKeyConstraint("id", name="pk_at_remeasurements"),
        sa.UniqueConstraint("study_id", "number", name="uq_at_remeasurements_study_id_number"),
    )
    op.create_table(
        "at_launches",
        sa.Column("id", sa.Integer(), nullable=False),
        _study_id(),
        sa.Column("purpose", sa.String(20), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(20), nullable=True),
        sa.Column("kind", sa.String(20), nullable=True),
        sa.Column("s_per_it", sa.Float(53), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=True),
        _foreign_key("at_launches"),
        sa.PrimaryKeyConstraint("id", name="pk_at_launches"),
        sa.UniqueConstraint(
            "study_id",
            "purpose",
            "number",
            "attempt",
            name="uq_at_launches_study_id_purpose_number_attempt",
        ),
    )


def downgrade() -> None:
    """Drop all tables; the folders keep everything."""
    for table in ("at_launches", "at_remeasurements", "at_trials", "at_studies", "at_meta"):
        op.drop_table(table)
