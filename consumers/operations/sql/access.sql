-- name: may_work
-- By the catalog, since a name in a schema that the login may not use could not even be asked about.
select current_user,
       c.oid is not null as tables,
       coalesce(has_schema_privilege(n.oid, 'usage') and has_any_column_privilege(c.oid, 'update'), false)
         as operations,
       coalesce(has_table_privilege(i.oid, 'insert'), false) as inbox
  from (select) one
  left join pg_namespace n on n.nspname = 'relay'
  left join pg_class c on c.relnamespace = n.oid and c.relname = 'operation'
  left join pg_class i on i.relnamespace = n.oid and i.relname = 'event_delivery'
