package world;

import java.io.File;
import java.lang.reflect.Field;
import java.util.HashMap;
import java.util.Map;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.catalyst.TableIdentifier;
import org.apache.spark.sql.catalyst.catalog.CatalogDatabase;
import org.apache.spark.sql.catalyst.catalog.CatalogStorageFormat;
import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.catalyst.catalog.CatalogTableType;
import org.apache.spark.sql.catalyst.catalog.ExternalCatalog;
import org.apache.spark.sql.catalyst.catalog.InMemoryCatalog;
import org.apache.spark.sql.catalyst.catalog.SessionCatalog;
import org.apache.spark.sql.delta.DeltaLog$;
import org.apache.spark.sql.delta.catalog.DeltaCatalog;
import org.apache.spark.sql.execution.datasources.v2.V2SessionCatalog;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Option;
import scala.collection.immutable.Map$;

/**
 * The catalog {@code workspace} of one session: another name of the session catalog, whose contents are private.
 *
 * <p>Options: {@code warehouse}, the folder of the episode; {@code tables}, {@code schema.table=folder} separated by
 * semicolons. Delta's commands work on the session catalog only, hence the alias; sessions share its contents, hence
 * the replacement.
 */
public final class WsCatalog extends DeltaCatalog {
  private static final int ATTEMPTS = 5;
  private static final long PAUSE_MS = 100;

  @Override
  public void initialize(String name, CaseInsensitiveStringMap options) {
    SparkSession session = (SparkSession) org.apache.spark.sql.SparkSession.active();
    SessionCatalog catalog = session.sessionState().catalog();
    String warehouse = options.get("warehouse");
    forgetGoneTables(session);
    if (warehouse != null) {
      ExternalCatalog tables = new InMemoryCatalog(session.sparkContext().conf(), session.sparkContext().hadoopConfiguration());
      createSchema(tables, "default", warehouse);
      for (String entry : options.getOrDefault("tables", "").split(";")) {
        if (!entry.isEmpty()) {
          register(tables, entry.substring(0, entry.indexOf('=')), entry.substring(entry.indexOf('=') + 1), warehouse);
        }
      }
      replaceContents(catalog, tables);
    }
    setDelegateCatalog(new V2SessionCatalog(catalog));
  }

  /** A schema without a location would go to the folder that all sessions share. */
  @Override
  public void createNamespace(String[] namespace, Map<String, String> metadata) {
    Map<String, String> placed = new HashMap<>(metadata);
    String warehouse = org.apache.spark.sql.SparkSession.active().conf().get("spark.sql.catalog.workspace.warehouse", null);
    if (warehouse != null && namespace.length == 1) {
      placed.put("location", new File(warehouse, namespace[0]).toURI().toString());
    }
    try {
      super.createNamespace(namespace, placed);
    } catch (org.apache.spark.sql.catalyst.analysis.NamespaceAlreadyExistsException error) {
      throw WsCatalog.<RuntimeException>unchecked(error);
    }
  }

  @SuppressWarnings("unchecked")
  private static <T extends Throwable> T unchecked(Throwable error) throws T {
    throw (T) error;
  }

  private static void createSchema(ExternalCatalog tables, String schema, String warehouse) {
    File folder = schema.equals("default") ? new File(warehouse) : new File(warehouse, schema);
    CatalogDatabase database = new CatalogDatabase(schema, "", folder.toURI(), Map$.MODULE$.<String, String>empty());
    for (int attempt = 1; ; attempt++) {
      try {
        tables.createDatabase(database, true);
        return;
      } catch (Exception error) {
        // The folder is there; what fails now and then is Hadoop's first look at its own settings.
        if (attempt == ATTEMPTS) {
          throw WsCatalog.<RuntimeException>unchecked(error);
        }
        pause();
      }
    }
  }

  private static void pause() {
    try {
      Thread.sleep(PAUSE_MS);
    } catch (InterruptedException error) {
      Thread.currentThread().interrupt();
    }
  }

  private static void register(ExternalCatalog tables, String table, String folder, String warehouse) {
    String schema = table.substring(0, table.indexOf('.'));
    createSchema(tables, schema, warehouse);
    CatalogStorageFormat storage = new CatalogStorageFormat(
        Option.apply(new File(warehouse, folder).toURI()), Option.empty(), Option.empty(), Option.empty(), false,
        Map$.MODULE$.<String, String>empty(), Option.empty());
    tables.createTable(
        new CatalogTable(
            new TableIdentifier(table.substring(table.indexOf('.') + 1), Option.apply(schema)),
            CatalogTableType.MANAGED(), storage, new StructType(), Option.apply("delta"),
            CatalogTable.apply$default$6(), CatalogTable.apply$default$7(), CatalogTable.apply$default$8(),
            0L, CatalogTable.apply$default$10(), CatalogTable.apply$default$11(),
            CatalogTable.apply$default$12(), CatalogTable.apply$default$13(), CatalogTable.apply$default$14(),
            CatalogTable.apply$default$15(), CatalogTable.apply$default$16(), CatalogTable.apply$default$17(),
            CatalogTable.apply$default$18(), CatalogTable.apply$default$19(), CatalogTable.apply$default$20(),
            CatalogTable.apply$default$21(), CatalogTable.apply$default$22()),
        true);
  }

  /**
   * Delta remembers a table for an hour after its last use, and with it the session that read it first; a megabyte for
   * each, which fills the memory of a server within some hundred episodes. Tables of past episodes have no folder.
   */
  private static void forgetGoneTables(SparkSession session) {
    DeltaLog$.MODULE$.getOrCreateCache(session.sessionState().conf()).asMap().keySet()
        .removeIf(key -> !new File(key.path().toUri()).exists());
  }

  private static void replaceContents(SessionCatalog catalog, ExternalCatalog tables) {
    catalog.externalCatalog();
    try {
      Field contents = SessionCatalog.class.getDeclaredField("externalCatalog");
      contents.setAccessible(true);
      contents.set(catalog, tables);
    } catch (ReflectiveOperationException error) {
      throw new IllegalStateException("this Spark keeps a session's tables elsewhere", error);
    }
  }
}
