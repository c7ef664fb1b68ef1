"""The catalog of Iceberg tables, as Iceberg's REST protocol describes it: https://iceberg.apache.org/rest-catalog-spec/."""
