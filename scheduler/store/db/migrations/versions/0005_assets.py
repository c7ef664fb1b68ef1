"""Assets: what tasks update, and what of it each DAG scheduled by assets has not consumed yet."""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

ASSETS = """
create table asset (
    uri        text primary key,
    name       text not null,
    created_at timestamptz not null default now()
);

create table asset_event (
    id         bigint generated always as identity primary key,
    uri        text not null references asset,
    extra      jsonb not null default '{}',
    dag_id     text,  -- the task that updated it; all NULL if somebody did through the API
    run_id     text,
    task_id    text,
    map_index  int,
    created_by text not null,
    created_at timestamptz not null default clock_timestamp()
);
create index asset_event_uri on asset_event (uri, id);

-- What schedules name: who waits for a URI is found without opening every DAG's data.
alter table dag_version add column asset_uris jsonb generated always as (data->'schedule'->'uris') stored;
create index dag_version_assets on dag_version using gin (asset_uris);
create index notice_asset on notice (id) where kind = 'asset' and ended_at is null;

-- Updates a DAG waits to consume: a run is made once its condition over these is true, and takes them.
create table asset_waiting (
    dag_id   text not null,
    uri      text not null,
    event_id bigint not null references asset_event on delete cascade,
    primary key (dag_id, uri, event_id)
);

create table dag_run_asset_event (
    dag_run_id bigint not null references dag_run on delete cascade,
    event_id   bigint not null references asset_event on delete cascade,
    primary key (dag_run_id, event_id)
);
"""


def upgrade() -> None:
    op.execute(ASSETS)


def downgrade() -> None:
    op.execute(
        "drop table dag_run_asset_event, asset_waiting, asset_event, asset;"
        " drop index notice_asset; alter table dag_version drop column asset_uris;"
    )
