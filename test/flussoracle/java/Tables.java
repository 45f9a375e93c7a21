import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.fluss.metadata.DatabaseDescriptor;
import org.apache.fluss.metadata.PartitionInfo;
import org.apache.fluss.metadata.PartitionSpec;
import org.apache.fluss.metadata.Schema;
import org.apache.fluss.metadata.SchemaInfo;
import org.apache.fluss.metadata.TableChange;
import org.apache.fluss.metadata.TableDescriptor;
import org.apache.fluss.metadata.TableInfo;
import org.apache.fluss.metadata.TablePath;
import org.apache.fluss.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.fluss.shaded.jackson2.com.fasterxml.jackson.databind.node.ObjectNode;

/** Databases, tables, partitions and schemas. */
final class Tables {
  private Tables() {}

  static void register(Map<String, Oracle.Operation> operations) {
    operations.put("create_table", Tables::create);
    operations.put("drop_table", r -> Oracle.admin.dropTable(Oracle.path(r), false).get());
    operations.put("table_info", r -> describe(Oracle.admin.getTableInfo(Oracle.path(r)).get()));
    operations.put("table_schema", Tables::schema);
    operations.put("list_tables", r -> Oracle.admin.listTables(r.get("database").asText()).get());
    operations.put("add_columns", Tables::addColumns);
    operations.put("create_partition", r -> Oracle.admin.createPartition(Oracle.path(r), spec(r), false).get());
    operations.put("drop_partition", r -> Oracle.admin.dropPartition(Oracle.path(r), spec(r), false).get());
    operations.put("list_partitions", Tables::partitions);
    operations.put("row_count", r -> Oracle.admin.getTableStats(Oracle.path(r)).get().getRowCount());
  }

  /**
   * The descriptor is Fluss's own JSON, in which only the bucket key may be missing; the
   * database is created when it is missing.
   */
  private static Object create(JsonNode request) throws Exception {
    TablePath path = Oracle.path(request);
    ObjectNode json = (ObjectNode) request.get("descriptor");
    if (json.has("bucket_count") && !json.has("bucket_key")) {
      json.putArray("bucket_key"); // Fluss's parser wants it; empty means the default
    }
    TableDescriptor descriptor = TableDescriptor.fromJsonBytes(Oracle.JSON.writeValueAsBytes(json));
    Oracle.admin.createDatabase(path.getDatabaseName(), DatabaseDescriptor.EMPTY, true).get();
    Oracle.admin.createTable(path, descriptor, false).get();
    return describe(Oracle.admin.getTableInfo(path).get());
  }

  private static Object describe(TableInfo info) throws Exception {
    Map<String, Object> answer = new LinkedHashMap<>();
    answer.put("table_id", info.getTableId());
    answer.put("schema_id", info.getSchemaId());
    answer.put("buckets", info.getNumBuckets());
    answer.put("table_json", Oracle.JSON.readTree(info.toTableDescriptor().toJsonBytes()));
    return answer;
  }

  private static Object schema(JsonNode request) throws Exception {
    TablePath path = Oracle.path(request);
    SchemaInfo info = request.hasNonNull("schema_id")
        ? Oracle.admin.getTableSchema(path, request.get("schema_id").asInt()).get()
        : Oracle.admin.getTableSchema(path).get();
    return Map.of("schema_id", info.getSchemaId(), "schema", Oracle.JSON.readTree(info.getSchema().toJsonBytes()));
  }

  /** The columns come as a schema in Fluss's JSON; they become the last ones. */
  private static Object addColumns(JsonNode request) throws Exception {
    Schema columns = Schema.fromJsonBytes(Oracle.JSON.writeValueAsBytes(request.get("columns")));
    List<TableChange> changes = new ArrayList<>();
    for (Schema.Column column : columns.getColumns()) {
      changes.add(TableChange.addColumn(column.getName(), column.getDataType(), column.getComment().orElse(null),
          TableChange.ColumnPosition.last()));
    }
    Oracle.admin.alterTable(Oracle.path(request), changes, false).get();
    return describe(Oracle.admin.getTableInfo(Oracle.path(request)).get());
  }

  private static PartitionSpec spec(JsonNode request) {
    Map<String, String> values = new LinkedHashMap<>();
    request.get("spec").fields().forEachRemaining(e -> values.put(e.getKey(), e.getValue().asText()));
    return new PartitionSpec(values);
  }

  private static Object partitions(JsonNode request) throws Exception {
    List<Object> answer = new ArrayList<>();
    for (PartitionInfo p : Oracle.admin.listPartitionInfos(Oracle.path(request)).get()) {
      answer.add(Map.of("id", p.getPartitionId(), "name", p.getPartitionName(), "spec", p.getPartitionSpec().getSpecMap()));
    }
    return answer;
  }

  /** Part of a table with buckets of its own: a partition, or all of it with both null. */
  record Part(String name, Long id) {}

  /** The parts of the table, or the partition that the request names. */
  static List<Part> parts(JsonNode request, TableInfo info) throws Exception {
    if (!info.isPartitioned()) {
      return List.of(new Part(null, null));
    }
    List<Part> parts = new ArrayList<>();
    String only = Oracle.partition(request);
    for (PartitionInfo p : Oracle.admin.listPartitionInfos(info.getTablePath()).get()) {
      if (only == null || only.equals(p.getPartitionName())) {
        parts.add(new Part(p.getPartitionName(), p.getPartitionId()));
      }
    }
    if (only != null && parts.isEmpty()) {
      throw new IllegalArgumentException("no partition " + only);
    }
    return parts;
  }
}
