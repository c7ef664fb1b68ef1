-- Tables: requests that are done once, and the folders in which a process may have left files that nothing needs.

-- Requests with an idempotency key that have been done: a repeated one is answered, and not done again.
create table table_request (
    digest  bytea primary key,  -- SHA-256 of the caller, the key and the request
    made_at timestamptz not null default clock_timestamp()
);

-- The folders that the catalog has given to new tables. A file in one of them belongs to its table, or nothing needs it.
create table table_folder (
    catalog    text not null,
    location   text not null,
    used_at    timestamptz not null default clock_timestamp(),  -- the last try that may have put files there began after this
    swept_at   timestamptz,  -- files from before this moment that nothing needed have been deleted
    visited_at timestamptz,  -- when a sweep last looked at it
    primary key (catalog, location)
);
