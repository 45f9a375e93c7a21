import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.fluss.client.lookup.LookupResult;
import org.apache.fluss.client.lookup.Lookuper;
import org.apache.fluss.client.metadata.KvSnapshots;
import org.apache.fluss.client.table.Table;
import org.apache.fluss.client.table.scanner.ScanRecord;
import org.apache.fluss.client.table.scanner.batch.BatchScanner;
import org.apache.fluss.client.table.scanner.log.LogScanner;
import org.apache.fluss.metadata.TableBucket;
import org.apache.fluss.metadata.TableInfo;
import org.apache.fluss.record.ChangeType;
import org.apache.fluss.row.InternalRow;
import org.apache.fluss.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.fluss.shaded.jackson2.com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.fluss.types.RowType;
import org.apache.fluss.utils.CloseableIterator;

/** Rows by look-up, by the scans of the client, and from the changelog. */
final class Reads {
  private static final Duration POLL = Duration.ofSeconds(1);
  private static final int IDLE_POLLS = 10;

  private Reads() {}

  /** Takes the rows of a scan. */
  interface Sink {
    void row(InternalRow row) throws Exception;
  }

  /** Reads one bucket of a table. */
  interface BucketScan {
    void run(Table table, Tables.Part part, TableBucket bucket) throws Exception;
  }

  static void register(Map<String, Oracle.Operation> operations) {
    operations.put("lookup", Reads::lookup);
    operations.put("limit_scan", r -> buckets(r, (table, part, bucket) -> {
      try (BatchScanner scanner = table.newScan().limit(r.path("limit").asInt(Integer.MAX_VALUE)).createBatchScanner(bucket)) {
        drain(scanner, row -> emit(table, part, bucket, row));
      }
    }));
    operations.put("snapshot_scan", r -> buckets(r, (table, part, bucket) ->
        snapshot(table, part, bucket, row -> emit(table, part, bucket, row))));
    operations.put("full_scan", r -> buckets(r, Reads::full));
    operations.put("log_scan", r -> buckets(r, (table, part, bucket) ->
        log(table, part, bucket, r.path("from").asLong(LogScanner.EARLIEST_OFFSET), record -> emit(table, part, bucket, record))));
  }

  /** A row a key, null for those that are absent. Keys are objects of the primary key's columns. */
  private static Object lookup(JsonNode request) throws Exception {
    try (Table table = Oracle.connection.getTable(Oracle.path(request))) {
      TableInfo info = table.getTableInfo();
      RowType keyType = info.getRowType().project(info.getPrimaryKeys());
      Lookuper lookuper = table.newLookup().createLookuper();
      List<CompletableFuture<LookupResult>> results = new ArrayList<>();
      for (JsonNode key : request.get("keys")) {
        results.add(lookuper.lookup(Rows.parse(key, keyType)));
      }
      List<Object> rows = new ArrayList<>();
      for (CompletableFuture<LookupResult> result : results) {
        InternalRow row = result.get(1, TimeUnit.MINUTES).getSingletonRow();
        rows.add(row == null ? null : Rows.json(row, info.getRowType()));
      }
      return rows;
    }
  }

  /** Runs a scan on every bucket of the table or of the partition, or on the one named. */
  private static Object buckets(JsonNode request, BucketScan scan) throws Exception {
    try (Table table = Oracle.connection.getTable(Oracle.path(request))) {
      TableInfo info = table.getTableInfo();
      for (Tables.Part part : Tables.parts(request, info)) {
        for (int b = 0; b < info.getNumBuckets(); b++) {
          if (!request.hasNonNull("bucket") || request.get("bucket").asInt() == b) {
            scan.run(table, part, new TableBucket(info.getTableId(), part.id(), b));
          }
        }
      }
      return null;
    }
  }

  private static void emit(Table table, Tables.Part part, TableBucket bucket, InternalRow row) throws Exception {
    Oracle.row(line(part, bucket, Rows.json(row, table.getTableInfo().getRowType())));
  }

  private static void emit(Table table, Tables.Part part, TableBucket bucket, ScanRecord record) throws Exception {
    ObjectNode line = line(part, bucket, Rows.json(record.getRow(), table.getTableInfo().getRowType()));
    Oracle.row(line.put("offset", record.logOffset()).put("change", record.getChangeType().shortString()));
  }

  private static ObjectNode line(Tables.Part part, TableBucket bucket, ObjectNode row) {
    ObjectNode line = Oracle.JSON.createObjectNode();
    if (part.name() != null) {
      line.put("partition", part.name());
    }
    line.put("bucket", bucket.getBucket()).set("row", row);
    return line;
  }

  private static void drain(BatchScanner scanner, Sink sink) throws Exception {
    for (CloseableIterator<InternalRow> batch; (batch = scanner.pollBatch(POLL)) != null; ) {
      try (CloseableIterator<InternalRow> rows = batch) {
        while (rows.hasNext()) {
          sink.row(rows.next());
        }
      }
    }
  }

  /** Reads the latest snapshot and returns the offset at which the log goes on. */
  private static long snapshot(Table table, Tables.Part part, TableBucket bucket, Sink sink) throws Exception {
    KvSnapshots latest = Snapshots.latest(table.getTableInfo().getTablePath(), part);
    if (latest.getSnapshotId(bucket.getBucket()).isEmpty()) {
      return LogScanner.EARLIEST_OFFSET;
    }
    try (BatchScanner scanner = table.newScan().createBatchScanner(bucket, latest.getSnapshotId(bucket.getBucket()).getAsLong())) {
      drain(scanner, sink);
    }
    return latest.getLogOffset(bucket.getBucket()).getAsLong();
  }

  /** The latest snapshot with the log after it: what the table holds, by primary key. */
  private static void full(Table table, Tables.Part part, TableBucket bucket) throws Exception {
    TableInfo info = table.getTableInfo();
    Map<JsonNode, ObjectNode> rows = new LinkedHashMap<>();
    long from = snapshot(table, part, bucket, row -> {
      ObjectNode json = Rows.json(row, info.getRowType());
      rows.put(key(info, json), json);
    });
    log(table, part, bucket, from, record -> {
      ObjectNode json = Rows.json(record.getRow(), info.getRowType());
      if (record.getChangeType() == ChangeType.DELETE) {
        rows.remove(key(info, json));
      } else if (record.getChangeType() != ChangeType.UPDATE_BEFORE) {
        rows.put(key(info, json), json);
      }
    });
    for (ObjectNode json : rows.values()) {
      Oracle.row(line(part, bucket, json));
    }
  }

  private static JsonNode key(TableInfo info, ObjectNode row) {
    return row.deepCopy().retain(info.getPrimaryKeys());
  }

  /** Takes the records of a log. */
  interface RecordSink {
    void record(ScanRecord record) throws Exception;
  }

  /** Reads the log up to its end at the time of the call. */
  private static void log(Table table, Tables.Part part, TableBucket bucket, long from, RecordSink sink) throws Exception {
    long end = Snapshots.ends(table.getTableInfo(), part).get(bucket.getBucket());
    if (end == 0 || from >= end) {
      return;
    }
    try (LogScanner scanner = table.newScan().createLogScanner()) {
      if (part.id() == null) {
        scanner.subscribe(bucket.getBucket(), from);
      } else {
        scanner.subscribe(part.id(), bucket.getBucket(), from);
      }
      // The last offsets may have no record: a batch can be empty. So the log is over at its
      // last offset, or when nothing has come for a while.
      for (long last = -1, idle = 0; last < end - 1 && idle < IDLE_POLLS; idle++) {
        for (ScanRecord record : scanner.poll(POLL)) {
          last = record.logOffset();
          idle = -1;
          if (last < end) {
            sink.record(record);
          }
        }
      }
    }
  }
}
