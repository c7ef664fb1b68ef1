-- A reproduction that a person starts on the pages or by the REST API is compared when somebody asks for the result.
alter table reproduction
    add column ignored text[] not null default '{}',  -- columns that are left out of the comparison of rows
    add column verdict json,
    add column compared_end timestamptz;  -- when the run had ended that was compared: it may be cleared, and end again
