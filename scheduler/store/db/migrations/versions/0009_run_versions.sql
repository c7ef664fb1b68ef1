-- The versions that a run had before it moved to another one, so that each try shows the code that it executed.
create table run_version (
    dag_run_id bigint not null references dag_run on delete cascade,
    version_id bigint not null references dag_version,
    until      timestamptz not null,
    primary key (dag_run_id, until)
);
create index run_version_version on run_version (version_id);
