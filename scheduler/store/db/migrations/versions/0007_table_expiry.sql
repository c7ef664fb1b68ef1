-- Tables: when a scheduler last looked for old snapshots of each.

create table table_expiry (
    catalog    text not null,
    namespace  text not null,
    name       text not null,
    visited_at timestamptz not null,
    primary key (catalog, namespace, name)
);
