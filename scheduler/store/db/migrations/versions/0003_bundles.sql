-- Bundles: named folders of DAG files, modules and data, whose versions are kept, so that a run executes the code of its version.

-- The versions of a bundle have numbers from 1. `wanted_id` is the one that was deployed last, or to which somebody rolled back. A
-- scheduler parses it, and makes it the live one if none of its files has an error.
create table bundle (
    name       text primary key check (name ~ '^[A-Za-z0-9_.-]{1,100}$'),
    version_id bigint,  -- the live version; NULL: none has been live
    wanted_id  bigint,
    source     jsonb,   -- what schedulers read it from, without secrets; NULL: it is deployed
    read_at    timestamptz,       -- the last time that a scheduler read the source
    read_until timestamptz,       -- until then, no other scheduler reads it
    problem    text               -- why the source cannot be read; NULL: it was read
);

-- Two versions of a bundle with equal files are one: `digest` is that of all paths, contents and modes.
create table bundle_version (
    id         bigint generated always as identity primary key,
    bundle     text not null references bundle on delete cascade,
    number     int not null,
    digest     bytea not null,
    -- new: to be parsed; ready: all of its files were; refused: not all could, see `problems`
    state      text not null default 'new' check (state in ('new', 'ready', 'refused')),
    file_count int not null,
    byte_count bigint not null,
    message    text not null default '',
    origin     text not null default '',  -- a Git commit, a URL
    created_by text not null,
    created_at timestamptz not null default clock_timestamp(),
    live_at    timestamptz,  -- when it became the live one the last time
    claimed_by    text,      -- the scheduler that parses it
    claimed_until timestamptz,
    problems   jsonb,        -- [{"file", "line", "message", "traceback"}]
    dags       jsonb,        -- {dag_id: {"version": the ID of its DAG version, "paused": whether it starts paused}}
    unique (bundle, digest),
    unique (bundle, number)
);
alter table bundle add foreign key (version_id) references bundle_version, add foreign key (wanted_id) references bundle_version;

-- The content of a file, compressed by zlib. Equal files are stored once.
create table bundle_blob (
    digest  bytea primary key,  -- the SHA-256 of the file
    content bytea not null
);
alter table bundle_blob alter column content set storage external;

-- The file that the versions `first` to `last` of a bundle have at a path, so that a version costs what differs from the one before.
create table bundle_path (
    bundle        text not null references bundle on delete cascade,
    path          text not null,
    first         int not null,
    last          int,  -- NULL: the newest version has it too
    digest        bytea not null references bundle_blob,
    is_executable boolean not null default false,
    byte_count    bigint not null,
    primary key (bundle, path, first)
);
create index bundle_path_newest on bundle_path (bundle) where last is null;
create index bundle_path_digest on bundle_path (digest);
comment on index bundle_path_newest is 'store/bundles/publish.py: the files of the newest version';
comment on index bundle_path_digest is 'store/bundles/collect.py: whether any version has a file';

create function forget_bundle_paths() returns trigger language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    delete from {schema}.bundle_path p using (select distinct bundle from gone) g
     where p.bundle operator(pg_catalog.=) g.bundle
       and not exists (select from {schema}.bundle_version v
                        where v.bundle operator(pg_catalog.=) p.bundle and v.number between p.first and coalesce(p.last, v.number));
    return null;
end $$;
revoke execute on function forget_bundle_paths() from public;
create trigger bundle_version_gone after delete on bundle_version referencing old table as gone
    for each statement execute function forget_bundle_paths();

-- The same graph with other code is another version of the DAG: its content_hash covers both. The code is all of its bundle except
-- other DAG files; where it is equal, this is the first version that had it. NULL: what stands in the DAGs folder.
alter table dag_version add bundle_version_id bigint references bundle_version on delete cascade;

alter table dag add bundle text references bundle;  -- NULL: the DAGs folder of the scheduler
