"""Runs our migrations on the connection that ``schema.upgrade`` hands over.

Restricted to our own tables: Optuna's live in the same database and have a history of their own.
"""

from __future__ import annotations

from alembic import context

from autotune.store.schema import alembic_options

context.configure(
    connection=context.config.attributes["connection"],
    transactional_ddl=True,
    render_as_batch=True,
    **alembic_options(),
)
with context.begin_transaction():
    context.run_migrations()
