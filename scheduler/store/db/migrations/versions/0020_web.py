"""For web processes: accounts, sessions, tokens, the audit log, notes, favorites, idempotent triggers, a database role.

Also what pages show: the source of each DAG version, the depth of queues over time, and indexes for newest runs and changes.
"""

from alembic import op

revision = "0020"
down_revision = "0018"
branch_labels = None
depends_on = None
compatible_from = "0008"
indexes = {
    # The newest runs of a DAG, for the grid.
    "dag_run_newest": "dag_run (dag_id, run_after, id)",
    "task_instance_failed": "task_instance (ended_at) where state = 'failed'",
    # What changed in the last moment. BRIN, because a B-tree would cost each event more: events arrive in the order of their time.
    "event_at": "event using brin (at) with (pages_per_range = 8, autosummarize = on)",
}

ACCOUNTS = """
create table account (
    id            bigint generated always as identity primary key,
    name          text not null,
    -- Empty: no password, only logins through the OpenID Connect provider.
    password_hash text not null,
    -- Issuer and subject at that provider.
    subject       text unique,
    -- NULL: only the rights by tag.
    role          text check (role in ('viewer', 'operator', 'admin')),
    created_at    timestamptz not null default clock_timestamp(),
    password_at   timestamptz not null default clock_timestamp()
);
create unique index account_name on account (lower(name));

-- Rights on the DAGs that have a tag, beside those of the role.
create table account_tag (
    account_id bigint not null references account on delete cascade,
    tag        text not null,
    role       text not null check (role in ('viewer', 'operator', 'admin')),
    primary key (account_id, tag)
);

-- What proves who sends a request. Only a SHA-256 of it is stored.
create table account_key (
    digest     bytea primary key,
    account_id bigint not null references account on delete cascade,
    kind       text not null check (kind in ('session', 'jwt', 'token', 'link')),
    name       text not null default '',
    address    text,
    created_at timestamptz not null default clock_timestamp(),
    expires_at timestamptz not null
);
create index account_key_of on account_key (account_id, kind);
create index account_key_expires on account_key (expires_at);

-- Failed logins by account and address, and by address.
create table login_failure (
    key      text primary key,
    failures int not null,
    last_at  timestamptz not null
);

create table favorite (
    account_id bigint not null references account on delete cascade,
    dag_id     text not null,
    primary key (account_id, dag_id)
);
"""

AUDIT = """
-- Each change that somebody asked for, also those that failed. `status` is the HTTP status; NULL: the process ended meanwhile.
create table audit (
    id         bigint generated always as identity primary key,
    at         timestamptz not null default clock_timestamp(),
    account    text,
    address    text,
    event      text not null,
    dag_id     text,
    run_id     text,
    task_id    text,
    map_index  int,
    extra      jsonb not null default '{}',
    status     int
);
create index audit_at on audit (at);
create index audit_dag on audit (dag_id, id) where dag_id is not null;
"""

NOTES = """
create table run_note (
    dag_run_id bigint primary key references dag_run on delete cascade,
    note       text not null
);
create table instance_note (
    task_instance_id bigint primary key references task_instance on delete cascade,
    note             text not null
);
-- Triggers that a client may repeat: the same key of the same account gives the run that the first request made.
create table idempotent_trigger (
    account_id bigint not null references account on delete cascade,
    key        text not null,
    request    bytea not null,
    dag_run_id bigint references dag_run on delete cascade,
    created_at timestamptz not null default clock_timestamp(),
    primary key (account_id, key)
);
create index idempotent_trigger_of on idempotent_trigger (dag_run_id);
"""

ROLES = """
create table web_role (
    name text primary key
);
"""

PAGES = """
-- The file of a DAG version. Equal files are stored once.
create table dag_source (
    digest  bytea primary key,
    content text not null
);
alter table dag_version add column source bytea references dag_source;
create index dag_version_source on dag_version (source) where source is not null;

create table queue_depth (
    queue     text not null,
    at        timestamptz not null,
    scheduled int not null,
    queued    int not null,
    running   int not null,
    places    int not null,
    primary key (queue, at)
);
create index queue_depth_at on queue_depth (at);

-- Workers that take no more tasks, and end when their running tasks have ended.
create table worker_drain (
    process_id text primary key references process on delete cascade,
    asked_by   text not null,
    at         timestamptz not null default clock_timestamp()
);
"""

#: As in 0016, and a web process may name the account that it acts for.
ACTOR = """
create or replace function event_actor() returns pg_catalog.text language plpgsql
    set search_path = pg_catalog, {schema}, pg_temp as $$
declare
    named pg_catalog.text := nullif(current_setting('paceline.actor', true), '');
begin
    if pg_catalog.has_table_privilege(session_user, '{schema}.event'::pg_catalog.regclass, 'insert') then
        if current_setting('paceline.events', true) = 'off' then
            return null;
        end if;
        return coalesce(named, concat('sql:', session_user));
    end if;
    if not (select s.record_events from {schema}.paceline_schema s) then
        return null;
    end if;
    if left(named, 4) = 'api:' and exists (select from {schema}.web_role w where w.name = session_user) then
        return named;
    end if;
    if exists (select from {schema}.process p where p.id = named and coalesce(p.db_role, session_user) = session_user
                  and p.kind = any (array['worker', 'waiter'])) then
        return named;
    end if;
    return concat('sql:', session_user);
end $$;
"""


def upgrade() -> None:
    bind = op.get_bind()
    schema = bind.exec_driver_sql("select quote_ident(current_schema())").scalar_one()
    for part in (ACCOUNTS, AUDIT, NOTES, ROLES, PAGES):
        op.execute(part)
    bind.exec_driver_sql(ACTOR.replace("{schema}", schema))


def downgrade() -> None:
    raise NotImplementedError("It would delete accounts and the audit log; restore a backup instead.")
