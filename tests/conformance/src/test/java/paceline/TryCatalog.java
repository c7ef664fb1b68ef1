package paceline;

import java.util.HashMap;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.catalog.Namespace;
import org.apache.iceberg.rest.RESTCatalog;

/** The catalog for the try whose address and token are in the environment. */
final class TryCatalog {
  static final String WAREHOUSE = System.getenv("CATALOG_WAREHOUSE");

  /** The tests expect that a client gives these properties to each table. */
  private static final Map<String, String> OF_TABLES = Map.of(
      "table-default.default-key1", "catalog-default-key1",
      "table-default.default-key2", "catalog-default-key2",
      "table-default.override-key3", "catalog-default-key3",
      "table-override.override-key3", "catalog-override-key3",
      "table-override.override-key4", "catalog-override-key4",
      "view-default.key1", "catalog-default-key1",
      "view-default.key2", "catalog-default-key2",
      "view-default.key3", "catalog-default-key3",
      "view-override.key3", "catalog-override-key3",
      "view-override.key4", "catalog-override-key4");

  private TryCatalog() {}

  static RESTCatalog connect(String name, Map<String, String> properties) {
    Map<String, String> all = new HashMap<>(OF_TABLES);
    all.putAll(properties);
    all.put("uri", System.getenv("CATALOG_URI"));
    all.put("token", System.getenv("CATALOG_TOKEN"));
    RESTCatalog catalog = new RESTCatalog();
    catalog.setConf(new Configuration());
    catalog.initialize(name, all);
    return catalog;
  }

  /** All tests run in one try, so each begins without what the one before it has left. */
  static void empty(RESTCatalog catalog) {
    catalog.listNamespaces().forEach(namespace -> drop(catalog, namespace));
  }

  private static void drop(RESTCatalog catalog, Namespace namespace) {
    catalog.listNamespaces(namespace).forEach(below -> drop(catalog, below));
    catalog.listTables(namespace).forEach(catalog::dropTable);
    catalog.listViews(namespace).forEach(catalog::dropView);
    catalog.dropNamespace(namespace);
  }
}
