-- Tables: pointers to the metadata files of Apache Iceberg tables, and what the tries of tasks have written but not published.

-- As the JDBC catalog of Iceberg creates them, so that its clients can read them. They hold what is current.
create table iceberg_tables (
    catalog_name               varchar(255) not null,
    table_namespace            varchar(255) not null,
    table_name                 varchar(255) not null,
    metadata_location          varchar(1000),
    previous_metadata_location varchar(1000),
    iceberg_type               varchar(5),
    primary key (catalog_name, table_namespace, table_name)
);
create table iceberg_namespace_properties (
    catalog_name   varchar(255) not null,
    namespace      varchar(255) not null,
    property_key   varchar(255),
    property_value varchar(1000),
    primary key (catalog_name, namespace, property_key)
);

-- The number of the last publication. A publication holds the lock of this row until its commit, so numbers are in the order of commits.
create table table_publication (
    one    boolean primary key default true check (one),
    number bigint not null default 0
);
insert into table_publication default values;

-- What each publication changed. The newest row of a name up to a publication is what it had then.
create table table_version (
    catalog           text not null,
    namespace         text not null,
    name              text not null,
    publication       bigint not null,
    metadata_location text,  -- NULL: dropped
    published_at      timestamptz not null default clock_timestamp(),
    published_by      text not null,  -- an account or a command; of a task, the columns below tell more
    task_instance_id  bigint,
    dag_id            text,
    run_id            text,
    task_id           text,
    map_index         int,
    try_number        int,
    facts             jsonb not null default '{}',  -- of the snapshot: its ID, operation, and rows
    primary key (catalog, namespace, name, publication)
);
create index table_version_publication on table_version (catalog, publication);
create index table_version_instance on table_version (task_instance_id) where task_instance_id is not null;
comment on index table_version_publication is 'store/tables/pointers.py: the names that a later publication changed';
comment on index table_version_instance is 'store/tables/pointers.py: what a task instance published';

-- A try that was given a token. It reads all tables as of one publication. Without its task instance, or after the end of the try,
-- the row waits until its files are removed.
create table table_try (
    id               bigint generated always as identity primary key,
    token_hash       bytea not null unique,  -- SHA-256
    task_instance_id bigint not null,
    try_number       int not null,
    dispatch_id      uuid not null,
    publication      bigint not null,
    created_at       timestamptz not null default clock_timestamp(),
    unique (task_instance_id, try_number)
);

-- What a try has written and only it sees: the pointer that the report of its success publishes if `base_location` is still current.
create table table_pending (
    try_id        bigint not null references table_try on delete cascade,
    namespace     text not null,
    name          text not null,
    base_location text,  -- NULL: the name was free
    location      text,  -- NULL: dropped
    updates       jsonb,  -- those of all its commits, which may be applied to a newer table; NULL: it replaces the table
    written       text[] not null default '{}',  -- every metadata file that the try wrote for this name
    facts         jsonb not null default '{}',
    primary key (try_id, namespace, name)
);
