-- A scheduler compares a reproduction that nobody has asked about, some times, before its tables are deleted.
alter table reproduction
    add column tries smallint not null default 0,  -- how often schedulers have tried it
    add column tried_at timestamptz,
    add column tried_end timestamptz,  -- when the run had ended that they tried, as compared_end
    add column failure text;  -- why the last of them failed
