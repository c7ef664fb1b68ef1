"""The arguments of a DAG."""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any, TypedDict

from paceline.authoring import fields
from paceline.authoring.arguments import Arguments
from paceline.authoring.deadline import alerts
from paceline.authoring.fields import Field, anything, boolean, callbacks, duration, integer, limit, mapping, optional, text
from paceline.authoring.task_arguments import Callbacks

TAG_MAX_LENGTH = 100
RUN_TYPES = ("scheduled", "manual", "backfill", "asset_triggered")


def _tags(checks: Arguments, name: str, value: Any) -> list[str]:
    names = checks.texts(name, () if value is None else value)
    for tag in names:
        if not tag.strip() or len(tag) > TAG_MAX_LENGTH:
            raise checks.refuse(f"the tag {tag!r} must have 1 to {TAG_MAX_LENGTH} characters.")
    return names


def _run_types(checks: Arguments, name: str, value: Any) -> tuple[str, ...]:
    return tuple(checks.choices(name, checks.texts(name, value or ()), RUN_TYPES))


def _links(checks: Arguments, name: str, value: Any) -> dict[str, object]:
    links = checks.mapping(name, value or {})
    for owner, link in links.items():
        if not isinstance(link, str) or not link.startswith(("http://", "https://", "mailto:")):
            raise checks.refuse(f"the link of owner {owner!r} must start with https://, http:// or mailto:, not {link!r}.")
    return links


class DagArguments(TypedDict, total=False):
    """The arguments of a DAG except dag_id; None takes a limit from the settings. Those without a Field are checked together."""

    schedule: Any
    start_date: datetime | None
    end_date: datetime | None
    max_active_runs: int | None
    default_args: Mapping[str, Any] | None
    description: Annotated[str | None, Field(None, anything)]
    dag_display_name: Annotated[str | None, Field(None, optional(text))]
    owner_links: Annotated[Mapping[str, str] | None, Field(None, _links)]
    doc_md: Annotated[str | None, Field(None, anything)]
    catchup: Annotated[bool | None, Field(None, optional(boolean))]
    max_active_tasks: Annotated[int | None, Field(None, limit)]
    tags: Annotated[Iterable[str], Field((), _tags)]
    render_template_as_native_obj: Annotated[bool, Field(False, boolean)]
    user_defined_macros: Annotated[Mapping[str, Any] | None, Field(None, mapping)]
    user_defined_filters: Annotated[Mapping[str, Callable[..., Any]] | None, Field(None, mapping)]
    template_searchpath: Annotated[str | Iterable[str] | None, Field(None, fields.one_or_more)]
    template_undefined: Annotated[type | None, Field(None, anything)]
    jinja_environment_kwargs: Annotated[Mapping[str, Any] | None, Field(None, mapping)]
    is_paused_upon_creation: Annotated[bool | None, Field(None, optional(boolean))]
    params: Annotated[Mapping[str, Any] | None, Field(None, fields.params)]
    dagrun_timeout: Annotated[timedelta | None, Field(None, optional(duration()))]
    fail_fast: Annotated[bool, Field(False, boolean)]
    max_consecutive_failed_dag_runs: Annotated[int | None, Field(None, optional(integer(least=0)))]
    on_success_callback: Annotated[Callbacks, Field(None, callbacks)]
    on_failure_callback: Annotated[Callbacks, Field(None, callbacks)]
    sla_miss_callback: Annotated[Callable[..., Any] | None, Field(None, optional(Arguments.function))]
    deadline: Annotated[Any, Field(None, alerts)]
    disable_bundle_versioning: Annotated[bool, Field(False, boolean)]
    rerun_with_latest_version: Annotated[bool | None, Field(None, optional(boolean))]
    allowed_run_types: Annotated[Iterable[str] | None, Field(None, _run_types)]


#: The arguments that take callbacks, by the name of their event.
CALLBACKS = {"dag_success": "on_success_callback", "dag_failure": "on_failure_callback"}
