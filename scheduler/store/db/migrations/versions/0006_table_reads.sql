-- Tables: what runs have read, and the state that all tasks of a run read.

-- Of a run whose DAG has read_at="run_start". A run that is cleared and starts again gets another publication.
create table table_run (
    dag_run_id  bigint primary key,
    started_at  timestamptz not null,
    publication bigint not null
);
alter table table_try add column run_publication bigint;  -- NULL: its tries read as of their own publication

-- Each table that a try of a run has read, as it was before the try wrote to it.
create table table_read (
    dag_run_id        bigint not null,
    task_instance_id  bigint not null,
    try_number        int not null,
    namespace         text not null,
    name              text not null,
    publication       bigint,  -- that published what was read; NULL: a program outside Paceline did
    snapshot_id       bigint,  -- NULL: the table had no snapshot
    metadata_location text not null,
    read_at           timestamptz not null default clock_timestamp(),
    primary key (dag_run_id, task_instance_id, try_number, namespace, name)
);
