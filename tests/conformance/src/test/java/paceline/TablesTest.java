package paceline;

import java.util.Map;
import org.apache.iceberg.catalog.CatalogTests;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.rest.RESTCatalog;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;

/** Iceberg's tests of namespaces and tables. */
class TablesTest extends CatalogTests<RESTCatalog> {
  private static RESTCatalog catalog;

  @BeforeAll
  static void connect() {
    catalog = TryCatalog.connect("tables", Map.of());
  }

  @AfterAll
  static void close() throws Exception {
    catalog.close();
  }

  @BeforeEach
  void empty() {
    TryCatalog.empty(catalog);
  }

  @Override
  protected RESTCatalog catalog() {
    return catalog;
  }

  @Override
  protected RESTCatalog initCatalog(String name, Map<String, String> properties) {
    return TryCatalog.connect(name, properties);
  }

  @Override
  protected boolean supportsNestedNamespaces() {
    return true;
  }

  @Override
  protected boolean requiresNamespaceCreate() {
    return true;
  }

  @Override
  protected boolean supportsServerSideRetry() {
    return true;
  }

  /** A table may be in the folder of its namespace only. */
  @Override
  protected String baseTableLocation(TableIdentifier table) {
    return String.join("/", TryCatalog.WAREHOUSE, String.join("/", table.namespace().levels()), table.name());
  }
}
