package world;

import java.lang.reflect.Field;
import java.util.Locale;
import java.util.Set;
import org.apache.hadoop.fs.Path;
import org.apache.spark.JobArtifactState;
import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.artifact.ArtifactManager;
import org.apache.spark.sql.catalyst.analysis.NamedRelation;
import org.apache.spark.sql.catalyst.analysis.ResolvedIdentifier;
import org.apache.spark.sql.catalyst.analysis.ResolvedTable;
import org.apache.spark.sql.catalyst.catalog.CatalogStorageFormat;
import org.apache.spark.sql.catalyst.catalog.CatalogTable;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.plans.logical.CreateTableLike;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.TableSpecBase;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.delta.catalog.DeltaTableV2;
import org.apache.spark.sql.execution.command.CreateViewCommand;
import org.apache.spark.sql.execution.command.ResetCommand;
import org.apache.spark.sql.execution.command.SetCommand;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.InsertIntoHadoopFsRelationCommand;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import org.apache.spark.sql.execution.datasources.SaveIntoDataSourceCommand;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import scala.Option;
import scala.Product;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractFunction1;
import scala.runtime.BoxedUnit;

/** Refuses, in every analysed plan, what reaches beyond the folder of the session, whichever client sent it. */
public final class Guard extends AbstractFunction1<SparkSessionExtensions, BoxedUnit> {
  private static final String WAREHOUSE = "spark.sql.catalog.workspace.warehouse";

  private static final Set<String> REFUSED_NODES = Set.of(
      "AddArchivesCommand", "AddFilesCommand", "AddJarsCommand", "ListArchivesCommand", "ListFilesCommand",
      "ListJarsCommand", "CreateFunction", "CreateFunctionCommand", "InsertIntoDir", "InsertIntoDataSourceDirCommand",
      "LoadData", "LoadDataCommand", "ScriptTransformation", "ScriptTransformationExec", "AlterDatabaseSetLocationCommand",
      "AlterTableSetLocationCommand", "AlterTableSetLocationDeltaCommand", "SetNamespaceLocation", "SetTableLocation",
      "ConvertToDeltaCommand", "DeltaGenerateCommand", "CreateTempViewUsing", "ExternalCommandExecutor",
      "PythonWorkerLogs", "MapInPandas", "MapInArrow", "FlatMapGroupsInPandas", "FlatMapGroupsInArrow",
      "FlatMapCoGroupsInPandas", "FlatMapCoGroupsInArrow", "FlatMapGroupsInPandasWithState", "BatchEvalPythonUDTF", "ResolvedPathBasedNonDeltaTable",
      "ArrowEvalPythonUDTF", "ExecuteImmediateCommand", "ExecuteImmediateQuery", "CompoundBody");

  private static final Set<String> REFUSED_EXPRESSIONS =
      Set.of("CallMethodViaReflection", "TryReflect", "PythonUDF", "PythonUDAF", "PythonUDTF");

  private static final Set<String> SETTINGS = Set.of(
      "spark.sql.ansi.enabled", "spark.sql.storeassignmentpolicy", "spark.sql.session.timezone", "spark.sql.casesensitive",
      "spark.sql.sources.partitionoverwritemode");

  @Override
  public BoxedUnit apply(SparkSessionExtensions extensions) {
    extensions.injectCheckRule(session -> {
      shareClasses((SparkSession) session);
      return plan -> {
        plan.foreachWithSubqueries(node -> {
          check((LogicalPlan) node, (SparkSession) session);
          return BoxedUnit.UNIT;
        });
        return BoxedUnit.UNIT;
      };
    });
    return BoxedUnit.UNIT;
  }

  /** Says whether a setting may be changed from within a workspace. */
  static boolean isFree(String key) {
    String lower = key.toLowerCase(Locale.ROOT);
    return SETTINGS.contains(lower) || lower.startsWith("spark.databricks.delta.");
  }

  static SecurityException refusal(String what) {
    return new SecurityException(
        "[INSUFFICIENT_PERMISSIONS] Insufficient privileges: " + what + " is not allowed in this workspace. SQLSTATE: 42501");
  }

  /**
   * Sessions bring no classes of their own. Spark would ask its driver over the network for every class that generated
   * code looks up in vain, and keep a class loader per session.
   */
  private static void shareClasses(SparkSession session) {
    ArtifactManager manager = session.artifactManager();
    manager.state();
    try {
      Field state = ArtifactManager.class.getDeclaredField("state");
      state.setAccessible(true);
      state.set(manager, new JobArtifactState("world", Option.empty()));
    } catch (ReflectiveOperationException error) {
      throw new IllegalStateException("this Spark keeps a session's classes elsewhere", error);
    }
  }

  private static void check(LogicalPlan node, SparkSession session) {
    if (REFUSED_NODES.contains(node.getClass().getSimpleName())) {
      throw refusal(node.nodeName());
    }
    for (Expression expression : CollectionConverters.asJava(node.expressions())) {
      expression.foreach(each -> {
        if (REFUSED_EXPRESSIONS.contains(each.getClass().getSimpleName())) {
          throw refusal("the function " + ((Expression) each).prettyName());
        }
        return BoxedUnit.UNIT;
      });
    }
    checkSettings(node);
    checkRelations(node, session);
    checkTargets(node, session);
    checkParts(node, session);
  }

  /** What a command works on is often a part of its node and none of its children. */
  private static void checkParts(Product whole, SparkSession session) {
    for (Object part : CollectionConverters.asJava(whole.productIterator().toSeq())) {
      checkPart(part instanceof Option<?> option && option.isDefined() ? option.get() : part, session);
    }
  }

  private static void checkPart(Object part, SparkSession session) {
    if (part instanceof Table table) {
      checkTable(table, session);
    } else if (part instanceof NamedRelation relation) {
      checkRelations((LogicalPlan) relation, session);
    } else if (part instanceof CatalogTable table) {
      if (table.provider().isDefined() && !table.provider().get().equalsIgnoreCase("delta")) {
        throw refusal("the format " + table.provider().get());
      }
      checkPart(table.storage(), session);
    } else if (part instanceof CatalogStorageFormat storage) {
      if (storage.locationUri().isDefined()) {
        checkPath(storage.locationUri().get().getPath(), session);
      }
    } else if (part instanceof Path path) {
      checkPath(path.toUri().getPath(), session);
    } else if (part instanceof Product product && !(part instanceof LogicalPlan) && isOfDelta(part)) {
      checkParts(product, session);
    }
  }

  private static void checkSettings(LogicalPlan node) {
    if (node instanceof SetCommand set && !(set.kv().isDefined() && isFree(set.kv().get()._1()))) {
      throw refusal("SET " + (set.kv().isDefined() ? set.kv().get()._1() : "of all settings"));
    }
    if (node instanceof ResetCommand reset && !(reset.config().isDefined() && isFree(reset.config().get()))) {
      throw refusal("RESET");
    }
    if (node instanceof CreateViewCommand view && view.viewType().toString().startsWith("Global")) {
      throw refusal("GLOBAL TEMPORARY VIEW");
    }
  }

  private static void checkRelations(LogicalPlan node, SparkSession session) {
    if (node instanceof LogicalRelation relation) {
      if (relation.relation() instanceof HadoopFsRelation files) {
        for (Path path : CollectionConverters.asJava(files.location().rootPaths())) {
          checkPath(path.toUri().getPath(), session);
        }
      } else if (!isOfDelta(relation.relation())) {
        throw refusal("this data source");
      }
    }
    if (node instanceof DataSourceV2Relation relation) {
      checkTable(relation.table(), session);
    }
    if (node instanceof ResolvedTable resolved) {
      checkTable(resolved.table(), session);
    }
  }

  private static void checkTable(Table table, SparkSession session) {
    if (table instanceof DeltaTableV2 delta) {
      checkPath(delta.path().toUri().getPath(), session);
    } else if (!isOfDelta(table) && !table.getClass().getName().startsWith("org.apache.spark.sql.connector.catalog.")) {
      throw refusal("the format of " + table.name());
    }
  }

  private static boolean isOfDelta(Object relation) {
    return relation.getClass().getName().startsWith("org.apache.spark.sql.delta.");
  }

  private static void checkTargets(LogicalPlan node, SparkSession session) {
    if (node instanceof InsertIntoHadoopFsRelationCommand insert) {
      checkPath(insert.outputPath().toUri().getPath(), session);
    }
    if (node instanceof SaveIntoDataSourceCommand save) {
      String path = CollectionConverters.asJava(save.options()).getOrDefault("path", "/");
      checkPath(new Path(path).toUri().getPath(), session);
    }
    if (node instanceof ResolvedIdentifier named && named.identifier().name().contains("/")) {
      checkPath(new Path(named.identifier().name()).toUri().getPath(), session);
    }
    if (node instanceof CreateTableLike like && like.location().isDefined()) {
      checkPath(new Path(like.location().get()).toUri().getPath(), session);
    }
    TableSpecBase spec = specification(node);
    if (spec instanceof org.apache.spark.sql.catalyst.plans.logical.TableSpec table) {
      if (table.location().isDefined()) {
        checkPath(new Path(table.location().get()).toUri().getPath(), session);
      }
      if (table.provider().isDefined() && !table.provider().get().equalsIgnoreCase("delta")) {
        throw refusal("the format " + table.provider().get());
      }
    }
  }

  /** The commands that make tables have no type in common that names their specification. */
  private static TableSpecBase specification(LogicalPlan node) {
    try {
      return (TableSpecBase) node.getClass().getMethod("tableSpec").invoke(node);
    } catch (NoSuchMethodException error) {
      return null;
    } catch (ReflectiveOperationException error) {
      throw new IllegalStateException(error);
    }
  }

  private static void checkPath(String path, SparkSession session) {
    String warehouse = session.conf().get(WAREHOUSE, null);
    java.nio.file.Path asked = java.nio.file.Path.of(path).normalize();
    if (warehouse == null || !asked.startsWith(warehouse)) {
      throw refusal("a path outside the workspace");
    }
  }
}
