"""Alembic's scripts for our tables; run by :mod:`autotune.store.schema`."""
