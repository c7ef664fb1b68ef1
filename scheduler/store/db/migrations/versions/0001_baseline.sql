-- The schema of Paceline 0.2.0. Later migrations change it: docs/explanation/migrations.md has their rules.
-- Functions come first, then tables, indexes, triggers and rights. `{schema}` is the quoted name of the current schema.


-- Functions --------------------------------------------------------------------------------------------------------------------

-- Whether a task instance has what its state needs. One function instead of a constraint for each state, because PostgreSQL parses
-- the stored text of each constraint again in every statement that changes a row. Its operators are qualified, so that no operator
-- in another schema of a session's search_path takes their place.
create function task_instance_complete(
    state text, requested_state text, pool_slots int, scheduled_at timestamptz, queued_at timestamptz, queued_by text,
    dispatch_id uuid, worker text, started_at timestamptz, due_at timestamptz, ended_at timestamptz, resume jsonb
) returns boolean language plpgsql immutable parallel safe as $$
begin
    return pool_slots operator(pg_catalog.>=) 1
       and (requested_state is null
            or requested_state operator(pg_catalog.=) any (array['none', 'success', 'failed', 'skipped']))
       and case
        when state is null then true
        when state operator(pg_catalog.=) 'scheduled' then scheduled_at is not null
        when state operator(pg_catalog.=) 'queued' then queued_at is not null and dispatch_id is not null and queued_by is not null
        when state operator(pg_catalog.=) 'running' then started_at is not null and dispatch_id is not null and worker is not null
        when state operator(pg_catalog.=) 'success' then ended_at is not null
        when state operator(pg_catalog.=) 'failed' then ended_at is not null
        when state operator(pg_catalog.=) 'skipped' then ended_at is not null
        when state operator(pg_catalog.=) 'upstream_failed' then ended_at is not null
        when state operator(pg_catalog.=) 'up_for_retry' then due_at is not null
        when state operator(pg_catalog.=) 'up_for_reschedule' then due_at is not null
        when state operator(pg_catalog.=) 'deferred' then dispatch_id is not null and resume is not null
        when state operator(pg_catalog.=) 'removed' then true
        when state operator(pg_catalog.=) 'shutdown' then
            started_at is not null and dispatch_id is not null and worker is not null and requested_state is not null
        else false
    end;
end $$;

-- Whether a change of a task instance's state writes an event. The way scheduled -> queued -> running writes none, also if a worker
-- continues in place and skips "queued": the event at the end of a try has these times. A resumed try writes one when it runs.
create function task_instance_logged(former text, state text, resume jsonb) returns boolean
    language plpgsql immutable parallel safe as $$
begin
    return coalesce(state, '') operator(pg_catalog.<>) coalesce(former, '')
       and (coalesce(state, '') operator(pg_catalog.<>) 'queued' or former operator(pg_catalog.<>) 'scheduled')
       and (coalesce(state, '') operator(pg_catalog.<>) 'running'
            or former operator(pg_catalog.<>) all (array['queued', 'scheduled']) or resume is not null);
end $$;

-- The actor of a change. A role that may write events (the owner, schedulers) is trusted and may name itself. The role of web
-- processes may name the account that it acts for, and the role of workers a process that it registered. `session_user` is the role
-- that logged in, which `set role` and SECURITY DEFINER do not change. NULL: events are off.
create function event_actor() returns pg_catalog.text language plpgsql
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

-- Triggers write events and notices as the owner (SECURITY DEFINER), so a role may change a state without the right to write
-- either. Their search_path is fixed, so that no name is looked up in a schema of the caller.
create function log_task() returns trigger language plpgsql security definer
    set search_path = pg_catalog, {schema}, pg_temp as $$
declare
    who pg_catalog.text := {schema}.event_actor();
begin
    if who is null then
        return null;
    end if;
    if old.state = 'queued' or (old.state = 'running' and old.resume is null) then
        insert into {schema}.event (dag_run_id, task_instance_id, try_number, from_state, to_state, actor, reason,
                                    queued_at, queued_by, started_at, worker)
        values (new.dag_run_id, new.id, old.try_number, old.state, new.state, who, new.reason,
                old.queued_at, old.queued_by,
                case when old.state = 'running' then old.started_at end, case when old.state = 'running' then old.worker end);
    else
        insert into {schema}.event (dag_run_id, task_instance_id, try_number, from_state, to_state, actor, reason)
        values (new.dag_run_id, new.id, new.try_number, old.state, new.state, who, new.reason);
    end if;
    return null;
end $$;

create function log_run() returns trigger language plpgsql security definer
    set search_path = pg_catalog, {schema}, pg_temp as $$
declare
    who pg_catalog.text := {schema}.event_actor();
begin
    if who is null then
        return null;
    end if;
    insert into {schema}.event (dag_run_id, from_state, to_state, actor, reason)
    values (new.id, case when tg_op = 'UPDATE' then old.state end, new.state, who,
            case when tg_op = 'INSERT' then new.triggered_by
                 when new.state = 'failed' and new.timeout_at <= new.ended_at then 'timed_out' end);
    return null;
end $$;

create function forget_events() returns trigger language plpgsql security definer
    set search_path = pg_catalog, {schema}, pg_temp as $$
begin
    delete from event e using gone where e.dag_run_id = gone.id;
    return null;
end $$;

create function note_task() returns trigger language plpgsql security definer
    set search_path = pg_catalog, {schema}, pg_temp as $$
declare
    what text := case
        when new.state = 'running' and new.resume is null then 'execute'
        when new.state = 'success' and old.state in ('running', 'shutdown') then 'success'
        when new.state = 'failed' and old.state in ('running', 'shutdown') then 'failure'
        when new.state = 'up_for_retry' then 'retry'
        when new.state = 'skipped' and old.state = 'running' then 'skipped'
    end;
    one text;
begin
    if what is not null then
        foreach one in array new.notify loop
            if one in ('on_' || what, 'email_' || what) or (one = 'asset' and what = 'success') then
                insert into {schema}.notice (kind, dag_run_id, task_instance_id, try_number, state, reason)
                values (one, new.dag_run_id, new.id, new.try_number, new.state, new.reason);
            end if;
        end loop;
    end if;
    return null;
end $$;

create function note_run() returns trigger language plpgsql security definer
    set search_path = pg_catalog, {schema}, pg_temp as $$
declare
    what text := case new.state when 'success' then 'dag_success' else 'dag_failure' end;
begin
    if what = any(new.notify) then
        insert into notice (kind, dag_run_id, state, reason)
        values (what, new.id, new.state,
                case when new.state = 'success' then 'success'
                     when new.timeout_at <= new.ended_at then 'timed_out'
                     else 'task_failure' end);
    end if;
    return null;
end $$;

-- The role of workers cannot claim that a process of another role queued or ran a task, because events take these columns over. It
-- runs with the rights of the caller and qualifies every name: `set search_path` would cost as much again at each claim.
create function refuse_foreign_process() returns trigger language plpgsql as $$
declare
    named pg_catalog.text;
begin
    foreach named in array array[case when new.queued_by is distinct from old.queued_by then new.queued_by end,
                                 case when new.worker is distinct from old.worker then new.worker end] loop
        if named is not null and not exists (
            select from {schema}.process p
             where p.id operator(pg_catalog.=) named
               and coalesce(p.db_role, session_user) operator(pg_catalog.=) session_user
               and p.kind operator(pg_catalog.=) any (array['worker', 'waiter'])
        ) then
            raise insufficient_privilege using message = pg_catalog.concat(named, ' is no process of the role ', session_user);
        end if;
    end loop;
    return null;
end $$;

-- The role of workers registers only workers and waiters, under IDs that no other actor has (`cli:<user>`, `sql:<role>`,
-- `api:<account>`): events show the ID as the actor.
create function refuse_foreign_registration() returns trigger language plpgsql
    set search_path = pg_catalog, {schema}, pg_temp as $$
begin
    if new.kind not in ('worker', 'waiter') or (tg_op = 'UPDATE' and coalesce(old.db_role, session_user) <> session_user) then
        raise insufficient_privilege using
            message = concat('the role ', session_user, ' may not register or change a ', new.kind, ' of another role');
    end if;
    if tg_op = 'INSERT' and (new.id !~ '^.+#[0-9a-f]{8}$' or new.id ~ '^(cli|sql|api):') then
        raise insufficient_privilege using message = concat(new.id, ' is not the ID of a process');
    end if;
    return null;
end $$;

-- When a DAG is unpaused, its parked task instances return to their places. The queue service parked them behind all others: it
-- subtracted 2^61 from their rank while it held a shared lock on the row of dag_schedule, so this trigger sees all of them.
create function unpark() returns trigger language plpgsql as $$
begin
    with parked as (
        select t.id from task_instance t join dag_run r on r.id = t.dag_run_id
         where r.dag_id = new.dag_id and r.state in ('queued', 'running')
           and t.state = 'scheduled' and t.rank <= -1152921504606846976
         order by t.id for no key update of t
    )
    update task_instance t set rank = t.rank + 2305843009213693952 from parked where t.id = parked.id;
    return null;
end $$;

-- Only the owner may analyze a table, and schedulers need it: see store/upkeep/retention.
create function analyze_task_instance() returns void language plpgsql security definer
    set search_path = pg_catalog, {schema}, pg_temp as $$
begin
    analyze {schema}.task_instance;
end $$;


-- The schema itself, and the roles of the database -------------------------------------------------------------------------------

-- Alembic makes this table of one row, with `version_num`.
alter table paceline_schema
    add column compatible_from text,  -- the oldest revision whose version of Paceline works with this schema
    -- core.record_events of the scheduler that started last, for sessions that are not trusted to say it themselves.
    add column record_events boolean not null default true,
    -- The first version with this chain of revisions. Schemas of earlier checkouts used the same numbers, and lack the column.
    add column baseline text not null default '0.2.0';

-- The roles with the rights of workers, schedulers and web processes: each migration grants these rights again (store/db/roles).
create table worker_role (
    name           text primary key,
    may_clear_runs boolean not null default false
);
create table scheduler_role (
    name text primary key
);
create table web_role (
    name text primary key
);


-- DAGs -------------------------------------------------------------------------------------------------------------------------

-- The file of a DAG version. Equal files are stored once.
create table dag_source (
    digest  bytea primary key,
    content text not null
);

-- The generated columns are what statements need of a DAG without reading all of its data.
create table dag_version (
    id           bigint generated always as identity primary key,
    dag_id       text not null,
    number       int not null,
    content_hash text not null,
    data         jsonb not null,
    max_active_runs  int not null generated always as (coalesce((data->>'max_active_runs')::int, 16)) stored,
    max_active_tasks int not null generated always as (coalesce((data->>'max_active_tasks')::int, 16)) stored,
    created_at   timestamptz not null default now(),
    asset_uris   jsonb generated always as (data->'schedule'->'uris') stored,
    depends_on_past boolean not null generated always as (data @? '$.tasks[*] ? (@.depends_on_past == true)') stored,
    source       bytea references dag_source,
    unique (dag_id, content_hash),
    unique (dag_id, number)
);

-- Written by the parser, in one short transaction for each file.
create table dag (
    dag_id     text primary key,
    file       text not null,
    is_active  boolean not null default true,
    version_id bigint not null references dag_version,
    parsed_at  timestamptz not null default now()
);

-- Written by schedulers: the next run of a DAG. Not part of `dag`, so that a parser never locks a row that schedulers need.
create table dag_schedule (
    dag_id             text primary key,
    is_paused          boolean not null default false,
    planned_version_id bigint,
    next_logical_date  timestamptz,
    next_interval_start timestamptz,
    next_interval_end  timestamptz,
    next_run_after     timestamptz
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

create table dag_file (
    path          text primary key,
    modified_at   timestamptz not null,
    next_parse_at timestamptz not null default now(),
    claimed_by    text,
    claimed_until timestamptz,
    parsed_at     timestamptz,
    duration_s    double precision,
    dag_count     int not null default 0,
    modules       text[] not null default '{}'  -- of its folder, which it imports: a change of one is a change of the file
) with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

create table import_error (
    file      text primary key,
    line      int,
    message   text not null,
    traceback text not null default '',
    seen_at   timestamptz not null default now()
);


-- Runs and backfills -----------------------------------------------------------------------------------------------------------

create table backfill (
    id              bigint generated always as identity primary key,
    dag_id          text not null,
    version_id      bigint not null references dag_version,
    from_date       timestamptz not null,
    to_date         timestamptz not null,
    max_active_runs int not null check (max_active_runs >= 1),
    reprocess       text not null check (reprocess in ('none', 'failed', 'completed')),
    reverse         boolean not null default false,
    conf            jsonb,  -- NULL: new runs get none, and runs that run again keep theirs
    is_paused       boolean not null default false,
    created_by      text not null default 'cli',
    created_at      timestamptz not null default now(),
    ended_at        timestamptz,
    cancelled       boolean not null default false
);

create table dag_run (
    id                  bigint generated always as identity primary key,
    dag_id              text not null,
    run_id              text not null,
    run_type            text not null check (run_type in ('scheduled', 'manual', 'backfill', 'asset_triggered')),
    state               text not null check (state in ('queued', 'running', 'success', 'failed')),
    version_id          bigint not null references dag_version,
    logical_date        timestamptz,
    data_interval_start timestamptz,
    data_interval_end   timestamptz,
    run_after           timestamptz not null,
    conf                jsonb not null default '{}',
    triggered_by        text,
    queued_at           timestamptz not null default now(),
    started_at          timestamptz,
    ended_at            timestamptz,
    examined_at         timestamptz,
    clear_number        int not null default 0,
    timeout_at          timestamptz,  -- the end of dagrun_timeout; set when the run starts
    notify              text[],       -- the notices that its end gives: dag_success, dag_failure
    backfill_id         bigint references backfill on delete set null,
    backfill_ordinal    int,          -- its index in that backfill
    scheduling_error    text,         -- why schedulers cannot decide this run; NULL: the last examination succeeded
    partition_key       text,
    partition_date      timestamptz,
    -- The state with which the run ends after its teardowns, because a person or dagrun_timeout ended its other tasks.
    requested_state     text check (requested_state in ('success', 'failed')),
    -- When results changed outside of a try, so that a pool process knows whether to read them again.
    results_changed_at  timestamptz,
    unique (dag_id, run_id),
    constraint dag_run_running check (state <> 'running' or started_at is not null),
    constraint dag_run_ended check ((state in ('success', 'failed')) = (ended_at is not null))
) with (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

create table backfill_run (
    backfill_id         bigint not null references backfill on delete cascade,
    ordinal             int not null,
    logical_date        timestamptz not null,
    data_interval_start timestamptz not null,
    data_interval_end   timestamptz not null,
    dag_run_id          bigint references dag_run on delete set null,
    state               text not null default 'waiting' check (state in ('waiting', 'made', 'left_out')),
    reason              text,
    primary key (backfill_id, ordinal)
);

create table run_note (
    dag_run_id bigint primary key references dag_run on delete cascade,
    note       text not null
);

-- Deleted runs whose files have yet to be deleted, so that the end of a process leaves no files behind.
create table deleted_run (
    id     bigint primary key,
    dag_id text not null,
    run_id text not null,
    logs   boolean not null,
    due_at timestamptz not null
);


-- Task instances ---------------------------------------------------------------------------------------------------------------

-- fillfactor leaves space for HOT updates. A search of an index walks over the entries of dead rows until a vacuum has cleaned it,
-- and a long history must not delay the vacuum.
create table task_instance (
    id              bigint generated always as identity primary key,
    dag_run_id      bigint not null references dag_run on delete cascade,
    task_id         text not null,
    map_index       int not null default -1,
    task_no         int not null,
    state           text,
    try_number      int not null default 0,
    max_tries       int not null default 0,
    queue           text not null,
    pool            text not null,
    pool_slots      int not null default 1,
    priority_weight int not null default 1,
    dispatch_id     uuid,
    dispatched_at   timestamptz,
    queued_by       text,
    worker          text,
    scheduled_at    timestamptz,
    queued_at       timestamptz,
    started_at      timestamptz,
    ended_at        timestamptz,
    due_at          timestamptz,
    reason          text,
    rank            bigint not null default 0,  -- priority_weight; that of a backfill lies below every other
    requested_state text,   -- the state that a shutdown ends in; 'none': it was cleared, and runs again
    resume          jsonb,  -- what the next dispatch of this try continues from: pokes, trigger event
    decision        jsonb,  -- {"skip": [task_id, ...]}: what a branch decided when it succeeded
    map_label       text,   -- map_index_template, rendered
    notify          text[], -- the changes that give a notice (note_task)
    max_active_tis_per_dag    int,
    max_active_tis_per_dagrun int,
    unique (dag_run_id, task_no, map_index),
    constraint task_instance_complete check (task_instance_complete(state, requested_state, pool_slots, scheduled_at, queued_at,
        queued_by, dispatch_id, worker, started_at, due_at, ended_at, resume))
) with (fillfactor = 75, autovacuum_vacuum_scale_factor = 0.002, autovacuum_vacuum_threshold = 5000,
        autovacuum_vacuum_cost_delay = 0, vacuum_index_cleanup = on);

-- The former tries: one row for each try that ended and was followed by another.
create table task_try (
    task_instance_id bigint not null references task_instance on delete cascade,
    try_number       int not null,
    dispatch_id      uuid,
    state            text,
    queued_by        text,
    worker           text,
    scheduled_at     timestamptz,
    queued_at        timestamptz,
    started_at       timestamptz,
    ended_at         timestamptz,
    reason           text
);

-- The values here and in the state of tasks and assets are `json`, so that numbers come back as they were written.
create table xcom (
    task_instance_id bigint not null references task_instance on delete cascade,
    key              text not null,
    value            json not null,
    created_at       timestamptz not null default now(),
    primary key (task_instance_id, key)
) with (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- The state that user code keeps from try to try.
create table task_state (
    task_instance_id bigint not null references task_instance on delete cascade,
    key              text not null check (length(key) between 1 and 512),
    value            json not null,
    updated_at       timestamptz not null default clock_timestamp(),
    expires_at       timestamptz,  -- from then on it is not read any more; NULL: never
    primary key (task_instance_id, key)
);

-- A deferred task instance waits for a trigger, which a waiter process awaits.
create table deferral (
    task_instance_id bigint primary key references task_instance on delete cascade,
    dispatch_id      uuid not null,  -- the dispatch that deferred; a later one has nothing to do with this row
    classpath        text not null,
    kwargs           jsonb not null default '{}',
    file             text,           -- the DAG file, if it defines the class
    created_at       timestamptz not null default now(),
    waiter           text            -- the process ID of the waiter that awaits it
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- An application that runs outside of its worker (Spark).
create table external_job (
    id               bigint generated always as identity primary key,
    task_instance_id bigint not null references task_instance on delete cascade,
    try_number       int not null,
    dispatch_id      uuid not null,  -- the dispatch that follows it: a retry that attaches to it writes its own
    -- max_tries of the task instance at the submission. Clearing changes it, so a cleared task instance does not attach to the
    -- application of the tries before.
    max_tries        int not null,
    queue            text not null,
    tag              text not null unique,
    kind             text not null check (kind in ('local', 'standalone', 'yarn', 'kubernetes', 'connect')),
    deploy_mode      text not null check (deploy_mode in ('client', 'cluster')),
    master           text not null,
    reach            jsonb not null default '{}',
    driver_id        text,
    application_id   text,
    ui_url           text,
    state            text not null default 'submitted'
                     check (state in ('submitted', 'running', 'finished', 'failed', 'killed', 'unknown')),
    detail           text not null default '',
    submitted_at     timestamptz not null default clock_timestamp(),
    at               timestamptz not null default clock_timestamp(),
    ended_at         timestamptz  -- NULL: the application may still run
);

-- The progress of a running task, as its worker last saw it. Unlogged, because after a loss the next one comes within a second.
create unlogged table task_progress (
    task_instance_id bigint primary key references task_instance on delete cascade,
    try_number       int not null,
    progress         jsonb not null,
    seen_at          timestamptz not null default clock_timestamp()
);

create table instance_note (
    task_instance_id bigint primary key references task_instance on delete cascade,
    note             text not null
);


-- Events, notices and deadlines ------------------------------------------------------------------------------------------------

-- Append-only, see docs/adr/0010. It has no foreign key, because its check would lock the row of the run at every change of a task
-- instance. The trigger dag_run_gone deletes the events of a deleted run instead.
create table event (
    at               timestamptz not null default clock_timestamp(),
    dag_run_id       bigint not null,
    task_instance_id bigint,  -- NULL: a change of the run
    try_number       int,
    from_state       text,
    to_state         text,
    actor            text not null,  -- the ID of a process, cli:<user>, api:<account> or sql:<role>
    reason           text,
    -- The dispatch that this event ends: scheduled -> queued -> running has no events of its own.
    queued_at        timestamptz,
    queued_by        text,
    started_at       timestamptz,
    worker           text
) with (autovacuum_vacuum_insert_scale_factor = 0.5);

-- The outbox, written in the transaction of the change: callbacks and emails to run, updates of assets to pass on. Each is done
-- once; `attempts` above 1 tells a callback that a crash interrupted it and it runs again. Kinds: on_execute, on_success,
-- on_failure, on_retry, on_skipped, dag_success, dag_failure, sla_miss, deadline, email_failure, email_retry, email_sla, asset.
create table notice (
    id               bigint generated always as identity primary key,
    kind             text not null,
    dag_run_id       bigint not null references dag_run on delete cascade,
    task_instance_id bigint references task_instance on delete cascade,
    try_number       int,
    state            text,
    reason           text,
    data             jsonb,
    created_at       timestamptz not null default clock_timestamp(),
    claimed_by       text,
    claimed_until    timestamptz,
    attempts         int not null default 0,  -- how often it was begun
    done             int not null default 0,  -- the callbacks of this event that have ended
    ended_at         timestamptz,
    error            text
) with (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

create table deadline (
    id               bigint generated always as identity primary key,
    dag_run_id       bigint not null references dag_run on delete cascade,
    task_no          int not null default -1,  -- -1: of the run
    kind             text not null check (kind in ('sla', 'deadline')),
    number           int not null default 0,   -- its index among the DAG's deadlines
    due_at           timestamptz not null,
    missed_at        timestamptz,
    unique (dag_run_id, kind, task_no, number)
);


-- Assets -----------------------------------------------------------------------------------------------------------------------

create table asset (
    uri        text primary key,
    name       text not null,
    created_at timestamptz not null default now()
);

create table asset_event (
    id             bigint generated always as identity primary key,
    uri            text not null references asset,
    extra          jsonb not null default '{}',
    dag_id         text,  -- the task that updated it; all NULL if a person did
    run_id         text,
    task_id        text,
    map_index      int,
    created_by     text not null,
    created_at     timestamptz not null default clock_timestamp(),
    partition_key  text,
    partition_date timestamptz
);

-- The updates that a DAG has not consumed yet. When its condition over them is true, a new run consumes them.
create table asset_waiting (
    dag_id        text not null,
    uri           text not null,
    event_id      bigint not null references asset_event on delete cascade,
    -- The partition of the run that the update is for; empty for a DAG without partitions. One update may be for several.
    partition_key text not null default '',
    primary key (dag_id, partition_key, uri, event_id)
);

create table dag_run_asset_event (
    dag_run_id bigint not null references dag_run on delete cascade,
    event_id   bigint not null references asset_event on delete cascade,
    primary key (dag_run_id, event_id)
);

-- The state that user code keeps from run to run. The asset may not have been updated yet, so there is no foreign key.
create table asset_state (
    uri        text not null,
    key        text not null check (length(key) between 1 and 512),
    value      json not null,
    updated_at timestamptz not null default clock_timestamp(),
    -- The task instance that wrote it last, whose run may be deleted.
    dag_id     text not null,
    run_id     text not null,
    task_id    text not null,
    map_index  int not null,
    primary key (uri, key)
);


-- Pools and processes ----------------------------------------------------------------------------------------------------------

create table pool (
    name             text primary key,
    slots            int not null check (slots >= -1),
    description      text not null default '',
    include_deferred boolean not null default false,
    queue            text,
    passes_slots_on  boolean not null default false  -- whether a task that ends may pass its slots on, see docs/adr/0011
);

-- Schedulers, workers and waiters: a row for each start, so a name that is used again is never mistaken for the dead process.
create table process (
    id           text primary key,
    kind         text not null check (kind in ('scheduler', 'worker', 'waiter')),
    name         text not null,
    host         text not null,
    pid          int not null,
    queues       text[] not null default '{}',
    concurrency  int not null default 0,
    started_at   timestamptz not null default now(),
    heartbeat_at timestamptz not null default now(),
    stopped_at   timestamptz,
    settings     jsonb,  -- those that processes must agree on: key -> value, or the digest of a secret
    schema       text,   -- the revision that its version of Paceline was made for
    db_role      text default session_user  -- the role that registered it
) with (fillfactor = 50, autovacuum_vacuum_threshold = 20, autovacuum_vacuum_cost_delay = 0);

-- Workers that take no more tasks, and end when their running tasks have ended.
create table worker_drain (
    process_id text primary key references process on delete cascade,
    asked_by   text not null,
    at         timestamptz not null default clock_timestamp()
);

create table queue_depth (
    queue     text not null,
    at        timestamptz not null,
    scheduled int not null,
    queued    int not null,
    running   int not null,
    places    int not null,
    primary key (queue, at)
);

-- Recovery from a crash, also of a single backend and after a failover, empties every unlogged table. An empty table therefore
-- means a crash, and a row a stop in order: see docs/adr/0004.
create unlogged table crash_free (
    since timestamptz not null default clock_timestamp(),
    one   boolean primary key default true check (one)
);
insert into crash_free default values;


-- Secrets, accounts and the audit log ------------------------------------------------------------------------------------------

create table variable (
    key         text primary key,
    value       text not null,  -- a Fernet token
    description text not null default '',
    updated_at  timestamptz not null default now()
);

create table connection (
    conn_id     text primary key,
    conn_type   text not null,
    description text not null default '',
    host        text,
    schema      text,
    login       text,
    port        int,
    password    text,  -- a Fernet token
    extra       text,  -- a Fernet token of a JSON object
    updated_at  timestamptz not null default now()
);

create table account (
    id            bigint generated always as identity primary key,
    name          text not null,
    password_hash text not null,  -- empty: no password, only logins through the OpenID Connect provider
    subject       text unique,    -- issuer and subject at that provider
    role          text check (role in ('viewer', 'operator', 'admin')),  -- NULL: only the rights by tag
    created_at    timestamptz not null default clock_timestamp(),
    password_at   timestamptz not null default clock_timestamp()
);

-- Rights on the DAGs with a tag, in addition to those of the role.
create table account_tag (
    account_id bigint not null references account on delete cascade,
    tag        text not null,
    role       text not null check (role in ('viewer', 'operator', 'admin')),
    primary key (account_id, tag)
);

-- Sessions, tokens and links, which prove who sends a request. Only a SHA-256 of each is stored.
create table account_key (
    digest     bytea primary key,
    account_id bigint not null references account on delete cascade,
    kind       text not null check (kind in ('session', 'jwt', 'token', 'link')),
    name       text not null default '',
    address    text,
    created_at timestamptz not null default clock_timestamp(),
    expires_at timestamptz not null
);

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

-- Each change that a person asked for, also failed ones. `status` is the HTTP status; NULL: the process ended meanwhile.
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

-- Triggers that a client may repeat: the same key of the same account gives the run that the first request made.
create table idempotent_trigger (
    account_id bigint not null references account on delete cascade,
    key        text not null,
    request    bytea not null,
    dag_run_id bigint references dag_run on delete cascade,
    created_at timestamptz not null default clock_timestamp(),
    primary key (account_id, key)
);


-- Indexes ----------------------------------------------------------------------------------------------------------------------

create index dag_file_idx on dag (file);
create index dag_file_due on dag_file (next_parse_at);
create index dag_schedule_next on dag_schedule (next_run_after) where not is_paused;
-- The DAGs whose schedule names a URI, without reading the data of every DAG.
create index dag_version_assets on dag_version using gin (asset_uris);
create index dag_version_source on dag_version (source) where source is not null;

-- One at a time for a DAG.
create unique index backfill_active on backfill (dag_id) where ended_at is null;
create index backfill_run_of on backfill_run (dag_run_id) where dag_run_id is not null;
create index backfill_run_waiting on backfill_run (backfill_id, ordinal) where state = 'waiting';

create unique index dag_run_logical_date on dag_run (dag_id, logical_date) where logical_date is not null;
-- With dag_run_logical_date, the last runs of a DAG, however long its history is.
create index dag_run_without_date on dag_run (dag_id, run_after) where logical_date is null;
create index dag_run_unfinished on dag_run (dag_id, state) where state in ('queued', 'running');
create index dag_run_examined on dag_run (examined_at nulls first) where state = 'running';
create index dag_run_timeout on dag_run (timeout_at) where state = 'running' and timeout_at is not null;
create index dag_run_scheduling_error on dag_run (id) where scheduling_error is not null;
create index dag_run_backfill on dag_run (backfill_id) where backfill_id is not null and state in ('queued', 'running');
-- The runs that wait to be started, in the order in which they are started: those of the schedule and by hand, and of backfills.
create index dag_run_queued on dag_run (dag_id, run_after, id) where state = 'queued' and backfill_id is null;
create index dag_run_backfill_queued on dag_run (backfill_id, backfill_ordinal, id)
    where state = 'queued' and backfill_id is not null;
-- The newest runs of a DAG for the grid, and of all DAGs for lists.
create index dag_run_newest on dag_run (dag_id, run_after, id);
create index dag_run_after on dag_run (run_after, id);
-- The run before another one, for depends_on_past: by logical date, or by run_after without one.
create index dag_run_ordered on dag_run (dag_id, (coalesce(logical_date, run_after)), id);
-- Retention, and the foreign keys that it meets.
create index dag_run_ended on dag_run (ended_at, id) where ended_at is not null;
create index dag_run_version on dag_run (version_id);
create index dag_run_asset_event_of on dag_run_asset_event (event_id);
create index asset_waiting_of on asset_waiting (event_id);
create index deleted_run_due on deleted_run (due_at, id);

-- The hot statements read these. No finished task instance is in one of them.
create index task_instance_unfinished on task_instance (dag_run_id, task_no)
    where state is null
       or state in ('scheduled', 'queued', 'running', 'up_for_retry', 'up_for_reschedule', 'deferred', 'shutdown');
create index task_instance_waiting on task_instance (pool, rank desc, id) where state = 'scheduled';
create index task_instance_holding on task_instance (pool, queue) include (pool_slots, dag_run_id)
    where state in ('queued', 'running', 'shutdown');
create index task_instance_due on task_instance (due_at) where state in ('up_for_retry', 'up_for_reschedule', 'deferred');
create index task_instance_deferred on task_instance (pool) include (pool_slots) where state = 'deferred';
create index task_instance_limited on task_instance (task_id, dag_run_id)
    where (max_active_tis_per_dag is not null or max_active_tis_per_dagrun is not null)
      and state in ('queued', 'running', 'shutdown', 'deferred');
-- The sweep of each scheduler: the runs in which a task instance ended lately.
create index task_instance_ended on task_instance (ended_at) where ended_at is not null;
create index task_instance_failed on task_instance (ended_at) where state = 'failed';
create index task_try_instance on task_try (task_instance_id, try_number);
create index deferral_free on deferral (created_at) where waiter is null;
create index external_job_instance on external_job (task_instance_id, id);
create index external_job_open on external_job (queue, id) where ended_at is null;

create index event_run on event (dag_run_id);
-- What changed in the last moment. BRIN, because a B-tree would cost each event more: events arrive in the order of their time.
create index event_at on event using brin (at) with (pages_per_range = 8, autosummarize = on);
create index notice_open on notice (id) where ended_at is null;
create index notice_asset on notice (id) where kind = 'asset' and ended_at is null;
create index notice_failed on notice (id) where ended_at is not null and error is not null;
create index notice_instance on notice (task_instance_id);
create index notice_run on notice (dag_run_id);
create index deadline_open on deadline (due_at) where missed_at is null;
create index asset_event_uri on asset_event (uri, id);

create index process_alive on process (kind, heartbeat_at) where stopped_at is null;
create index queue_depth_at on queue_depth (at);
create unique index account_name on account (lower(name));
create index account_key_of on account_key (account_id, kind);
create index account_key_expires on account_key (expires_at);
create index audit_at on audit (at);
create index audit_dag on audit (dag_id, id) where dag_id is not null;
create index idempotent_trigger_of on idempotent_trigger (dag_run_id);


-- Triggers ---------------------------------------------------------------------------------------------------------------------

create trigger task_instance_event after update of state on task_instance for each row
    when (task_instance_logged(old.state, new.state, new.resume)) execute function log_task();
create trigger dag_run_made after insert on dag_run for each row execute function log_run();
create trigger dag_run_event after update of state on dag_run for each row
    when (new.state is distinct from old.state) execute function log_run();
create trigger dag_run_gone after delete on dag_run referencing old table as gone for each statement
    execute function forget_events();

-- The conditions cost nothing for tasks and runs that give no notice.
create trigger task_instance_notice after update of state on task_instance for each row
    when (new.notify is not null and new.state is distinct from old.state) execute function note_task();
create trigger dag_run_notice after update of state on dag_run for each row
    when (new.notify is not null and new.state in ('success', 'failed') and old.state in ('queued', 'running'))
    execute function note_run();

-- These refuse after the change, and so undo it: before the change they would cost each change of a row one more lock.
create trigger task_instance_process after update of queued_by, worker on task_instance for each row
    when (not has_table_privilege(session_user, 'event'::regclass, 'insert')) execute function refuse_foreign_process();
create trigger process_role after insert or update on process for each row
    when (not has_table_privilege(session_user, 'event'::regclass, 'insert')) execute function refuse_foreign_registration();

create trigger dag_schedule_unparks after update of is_paused on dag_schedule for each row
    when (old.is_paused and not new.is_paused) execute function unpark();


-- Rights -----------------------------------------------------------------------------------------------------------------------

-- A role that may execute the function of a trigger could make it a trigger of its own table, and so write as the owner. The rights
-- on tables are those of store/db/roles.
revoke execute on function event_actor(), log_task(), log_run(), note_task(), note_run(), forget_events(),
    refuse_foreign_process(), refuse_foreign_registration(), unpark(), analyze_task_instance() from public;
