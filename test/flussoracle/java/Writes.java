import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.fluss.client.table.Table;
import org.apache.fluss.client.table.writer.UpsertWriter;
import org.apache.fluss.row.InternalRow;
import org.apache.fluss.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;

/** Upserts and deletes of whole rows, acknowledged when the answer comes. */
final class Writes {
  private Writes() {}

  static void register(Map<String, Oracle.Operation> operations) {
    operations.put("upsert", r -> write(r, false));
    operations.put("delete", r -> write(r, true));
  }

  private static Object write(JsonNode request, boolean delete) throws Exception {
    try (Table table = Oracle.connection.getTable(Oracle.path(request))) {
      UpsertWriter writer = table.newUpsert().createWriter();
      List<CompletableFuture<?>> acknowledged = new ArrayList<>();
      for (JsonNode json : request.get("rows")) {
        InternalRow row = Rows.parse(json, table.getTableInfo().getRowType());
        acknowledged.add(delete ? writer.delete(row) : writer.upsert(row));
      }
      writer.flush();
      for (CompletableFuture<?> f : acknowledged) {
        f.get(1, TimeUnit.MINUTES);
      }
      return null;
    }
  }
}
