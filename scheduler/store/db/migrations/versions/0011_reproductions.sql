-- Reproductions: runs that execute the code of an earlier run on its inputs, and write where nobody else reads.

-- "not valid" does not read the table: each row that fits the constraint before fits this one.
alter table dag_run
    drop constraint dag_run_run_type_check,
    add constraint dag_run_run_type_check
        check (run_type in ('scheduled', 'manual', 'backfill', 'asset_triggered', 'reproduction')) not valid;

-- The row outlives both runs, until the tables in the scratch namespace are dropped.
create table reproduction (
    dag_run_id  bigint primary key,
    original_id bigint not null,
    catalog     text not null,
    scratch     text not null unique,  -- the namespace; the tables of namespace n are in scratch.n
    keep        boolean not null       -- the tables stay as long as the run
);

-- The state of the tables that the last try of each task instance has read, so that a reproduction can read it again.
create table table_pin (
    dag_run_id       bigint not null,
    task_instance_id bigint not null,
    publication      bigint not null,
    run_publication  bigint,  -- as in table_try
    pinned_at        timestamptz not null default clock_timestamp(),
    primary key (dag_run_id, task_instance_id)
);
