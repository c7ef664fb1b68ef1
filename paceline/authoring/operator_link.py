"""Links of a task to other systems, such as the page of a cluster."""

from typing import Any


class BaseOperatorLink:
    """A link that `operator_extra_links` of an operator lists. Subclasses set `name` and implement `get_link`.

    After each try, the link is a line of its log and the XCom `xcom_key`.
    """

    #: The text of the link.
    name: str = ""

    @property
    def xcom_key(self) -> str:
        """The key under which the address is stored."""
        return f"_link_{type(self).__name__}"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """The address. `ti_key` is the task instance, with dag_id, task_id, run_id, try_number and map_index."""
        raise NotImplementedError(f"{type(self).__name__} has no get_link().")
