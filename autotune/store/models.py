"""Our tables. They index the folders; the whole records are kept as JSON text beside the columns.

JSON text and not a JSON type, because servers keep large integers in it as floats.
"""

from __future__ import annotations

from sqlalchemy import Float, ForeignKey, Integer, MetaData, String, Text, UniqueConstraint
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    """All our tables start with ``at_``; Optuna's tables share the database."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class StudyRow(Base):
    """One study."""

    __tablename__ = "at_studies"

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    name: Mapped[str] = mapped_column(String(100), unique=True)
    created_at: Mapped[float] = mapped_column(Float(53))
    updated_at: Mapped[float] = mapped_column(Float(53), index=True)
    space_fingerprint: Mapped[str] = mapped_column(String(128))
    context: Mapped[str] = mapped_column(String(128))
    record: Mapped[str] = mapped_column(Text)
    verdict: Mapped[str | None] = mapped_column(Text)


class TrialRow(Base):
    """One trial number."""

    __tablename__ = "at_trials"
    __table_args__ = (UniqueConstraint("study_id", "number"),)

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    study_id: Mapped[int] = mapped_column(ForeignKey("at_studies.id", ondelete="CASCADE"))
    number: Mapped[int] = mapped_column(Integer)
    origin: Mapped[str] = mapped_column(String(200))
    backend: Mapped[str] = mapped_column(String(100))
    key: Mapped[str] = mapped_column(String(128), index=True)
    context: Mapped[str] = mapped_column(String(128))
    created_at: Mapped[float] = mapped_column(Float(53))
    record: Mapped[str] = mapped_column(Text)


class RemeasurementRow(Base):
    """One declared new launch of a trial's configuration."""

    __tablename__ = "at_remeasurements"
    __table_args__ = (UniqueConstraint("study_id", "number"),)

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    study_id: Mapped[int] = mapped_column(ForeignKey("at_studies.id", ondelete="CASCADE"))
    number: Mapped[int] = mapped_column(Integer)
    role: Mapped[str] = mapped_column(String(20))
    trial: Mapped[int] = mapped_column(Integer)
    context: Mapped[str] = mapped_column(String(128))
    created_at: Mapped[float] = mapped_column(Float(53))
    record: Mapped[str] = mapped_column(Text)


class LaunchRow(Base):
    """One attempt of a trial or re-measurement; all but the identity is null until it is judged."""

    __tablename__ = "at_launches"
    __table_args__ = (UniqueConstraint("study_id", "purpose", "number", "attempt"),)

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    study_id: Mapped[int] = mapped_column(ForeignKey("at_studies.id", ondelete="CASCADE"))
    purpose: Mapped[str] = mapped_column(String(20))
    number: Mapped[int] = mapped_column(Integer)
    attempt: Mapped[int] = mapped_column(Integer)
    state: Mapped[str | None] = mapped_column(String(20))
    kind: Mapped[str | None] = mapped_column(String(20))
    s_per_it: Mapped[float | None] = mapped_column(Float(53))
    """Finite, and only of a real measurement."""
    outcome: Mapped[str | None] = mapped_column(Text)


class MetaRow(Base):
    """Facts about the database itself, such as the version that wrote it."""

    __tablename__ = "at_meta"

    name: Mapped[str] = mapped_column(String(100), primary_key=True)
    value: Mapped[str] = mapped_column(Text)
