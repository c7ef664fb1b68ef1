package paceline;

import java.util.Map;
import org.apache.iceberg.catalog.Catalog;
import org.apache.iceberg.rest.RESTCatalog;
import org.apache.iceberg.view.ViewCatalogTests;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;

/** Iceberg's tests of views. */
class ViewsTest extends ViewCatalogTests<RESTCatalog> {
  private static RESTCatalog catalog;

  @BeforeAll
  static void connect() {
    catalog = TryCatalog.connect("views", Map.of());
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
  protected Catalog tableCatalog() {
    return catalog;
  }

  @Override
  protected boolean requiresNamespaceCreate() {
    return true;
  }

  @Override
  protected boolean supportsServerSideRetry() {
    return true;
  }

  /** A view may be in the folder of its namespace only: all of them are in `ns`. */
  @Override
  protected String viewLocation(String... parts) {
    return TryCatalog.WAREHOUSE + "/ns/" + String.join("/", parts);
  }
}
