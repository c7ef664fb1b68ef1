"""Backfills: preview, create, pause, resume and cancel."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from sqlalchemy import Connection

from scheduler.actions.actor import Actor
from scheduler.store.actions import backfills as store
from scheduler.store.actions.backfills import BackfillRequest, Row

R = TypeVar("R")


def preview(by: Actor, wanted: BackfillRequest) -> list[Row]:
    """The dates that `create` would store, in order. It raises the same errors."""
    return by.write(store.dry_run, _of(by, wanted))


def create(by: Actor, wanted: BackfillRequest) -> Row:
    """Create a backfill; the scheduler creates its runs. See backfills.create."""
    created = by.write(store.create, _of(by, wanted))
    by.announce("backfill created")
    return created


def pause(by: Actor, backfill_id: int) -> bool:
    """Create and start no more of its runs; running ones continue. False if it was paused already."""
    return _change(by, store.pause, backfill_id)


def resume(by: Actor, backfill_id: int) -> bool:
    """Continue a paused backfill; False if it was not paused."""
    return _change(by, store.resume, backfill_id)


def cancel(by: Actor, backfill_id: int) -> Row:
    """End a backfill: its queued runs fail, its running ones continue. ConflictError if it has ended."""
    return _change(by, store.cancel, backfill_id)


def _of(by: Actor, wanted: BackfillRequest) -> BackfillRequest:
    return replace(wanted, created_by=by.made_by, core=by.settings.core)


def _change(by: Actor, change: Callable[[Connection, int], R], backfill_id: int) -> R:
    changed = by.write(change, backfill_id)
    by.announce("backfill changed")
    return changed
