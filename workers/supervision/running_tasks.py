"""The running tasks of a worker, as the worker reads them in the slots of its pool processes."""

from collections.abc import Iterator
from typing import Any

from workers.supervision.slots import (
    IN_HAND_AT,
    IN_PLACE_AT,
    RUNNING_AT,
    STEP_AT,
    STOP_AT,
    InPlace,
    Running,
    SharedSlots,
    Slot,
    Step,
)  # fmt: skip


class RunningTasks(SharedSlots):
    """The tasks that the pool processes of a worker run. Create it before they are forked."""

    def unleased(self) -> list[Running]:
        """Return the exclusive tasks that run without a lease."""
        return [task for task in self.running() if task.exclusive and not self.has_lease(task.worker)]

    def slot(self, index: int) -> "Slot":
        """Return the slot of the pool process with this number, starting at 0."""
        return Slot(self, 1 + index % self._children)

    def running(self) -> list[Running]:
        """Return the tasks that all pool processes run now."""
        return [task for _, task in self._each()]

    def remove(self, dispatch_id: str) -> Running | None:
        """Remove and return the entry of a dispatch whose pool process has died. Another process may soon have its process ID."""
        for index, task in self._each():
            if task.dispatch_id == dispatch_id:
                self.write(index, RUNNING_AT, None)
                return task
        return None

    def in_place(self, message: str) -> InPlace | None:
        """The work of the pool process that received this message, even if it has died; None if it has only run the task of the
        message.
        """
        entry = self._of_message(IN_PLACE_AT, message)
        return None if entry is None else InPlace(**entry)

    def claimed(self) -> dict[str, int]:
        """The dispatches that pool processes have claimed and not yet reported, with the IDs of their task instances.

        It includes those whose user code has ended, but whose report waits for the database.
        """
        return {dispatch_id: ti_id for dispatch_id, ti_id in self._in_hand() if ti_id is not None}

    def in_progress(self) -> set[str]:
        """The dispatches that pool processes have received and not yet reported, and those with which they may continue."""
        return {dispatch_id for dispatch_id, _ in self._in_hand()} | self._offered()

    def _in_hand(self) -> list[tuple[str, int | None]]:
        running = [(task.dispatch_id, task.ti_id) for task in self.running()]
        return running + [(entry[0], entry[1]) for _, entry in self.entries(IN_HAND_AT)]

    def _offered(self) -> set[str]:
        """The dispatches with which pool processes may continue, but have not begun. Each waits for its report, or for Redis."""
        offers = {entry["next_dispatch_id"] for _, entry in self.entries(IN_PLACE_AT)}
        return offers - {entry["dispatch_id"] for _, entry in self.entries(STEP_AT)}

    def step(self, message: str) -> Step | None:
        """The last task instance with which the pool process continued that received this message; None if there is none."""
        entry = self._of_message(STEP_AT, message)
        return None if entry is None else Step(**entry)

    def ask_stop(self, dispatch_id: str, reason: str) -> Running | None:
        """Write the reason to stop for the pool process that runs `dispatch_id`. Returns its entry if it still runs."""
        for index, task in self._each():
            if task.dispatch_id == dispatch_id:
                self.write(index, STOP_AT, [dispatch_id, reason])
                return task
        return None

    def _of_message(self, part: int, message: str) -> dict[str, Any] | None:
        return next((entry for _, entry in self.entries(part) if entry["message"] == message), None)

    def _each(self) -> Iterator[tuple[int, Running]]:
        return ((index, Running(**entry)) for index, entry in self.entries(RUNNING_AT))
