import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.fluss.client.metadata.KvSnapshots;
import org.apache.fluss.client.table.Table;
import org.apache.fluss.client.table.scanner.batch.BatchScanner;
import org.apache.fluss.client.table.writer.UpsertWriter;
import org.apache.fluss.metadata.TableBucket;
import org.apache.fluss.metadata.TablePath;
import org.apache.fluss.row.BinaryString;
import org.apache.fluss.row.GenericRow;
import org.apache.fluss.row.InternalRow;
import org.apache.fluss.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.fluss.utils.CloseableIterator;

/**
 * The online way of loading a table, to measure against: rows made in memory, upserted by
 * several threads over one connection. The table has the columns INT, STRING and DOUBLE;
 * bench.go makes the same rows.
 */
final class Load {
  private Load() {}

  static void register(Map<String, Oracle.Operation> operations) {
    operations.put("load", Load::load);
    operations.put("count_scan", Load::countScan);
  }

  private static Object load(JsonNode request) throws Exception {
    TablePath path = Oracle.path(request);
    long rows = request.get("rows").asLong();
    int threads = request.get("threads").asInt();
    AtomicLong acknowledged = new AtomicLong();
    AtomicLong failed = new AtomicLong();
    long cpu = processCpu();
    long begun = System.nanoTime();
    ExecutorService writers = Executors.newFixedThreadPool(threads);
    try {
      List<Callable<Void>> work = new ArrayList<>();
      for (int t = 0; t < threads; t++) {
        long first = t;
        work.add(() -> write(path, first, threads, rows, acknowledged, failed));
      }
      for (Future<Void> done : writers.invokeAll(work)) {
        done.get();
      }
    } finally {
      writers.shutdown();
    }
    while (acknowledged.get() + failed.get() < rows) {
      Thread.sleep(1); // flush has sent all; call-backs may still run
    }
    Map<String, Object> answer = new LinkedHashMap<>();
    answer.put("wall_ns", System.nanoTime() - begun);
    answer.put("cpu_ns", processCpu() - cpu);
    answer.put("acknowledged", acknowledged.get());
    answer.put("failed", failed.get());
    return answer;
  }

  private static Void write(TablePath path, long first, long step, long end, AtomicLong acknowledged, AtomicLong failed) throws Exception {
    try (Table table = Oracle.connection.getTable(path)) {
      UpsertWriter writer = table.newUpsert().createWriter();
      byte[] text = new byte[40];
      for (long i = first; i < end; i += step) {
        GenericRow row = new GenericRow(3);
        row.setField(0, (int) i);
        row.setField(1, BinaryString.fromBytes(fill(text, i).clone()));
        row.setField(2, i * 0.25);
        writer.upsert(row).whenComplete((ok, error) -> (error == null ? acknowledged : failed).incrementAndGet());
      }
      writer.flush();
    }
    return null;
  }

  /** Scans the latest snapshots, one bucket a thread, and reads every column of every row. */
  private static Object countScan(JsonNode request) throws Exception {
    TablePath path = Oracle.path(request);
    int threads = request.get("threads").asInt();
    long cpu = processCpu();
    long begun = System.nanoTime();
    AtomicLong rows = new AtomicLong();
    AtomicLong sum = new AtomicLong();
    KvSnapshots latest = Oracle.admin.getLatestKvSnapshots(path).get();
    ExecutorService readers = Executors.newFixedThreadPool(threads);
    try (Table table = Oracle.connection.getTable(path)) {
      List<Callable<Void>> work = new ArrayList<>();
      for (int b : latest.getBucketIds()) {
        work.add(() -> {
          long n = 0;
          long s = 0;
          TableBucket bucket = new TableBucket(latest.getTableId(), b);
          try (BatchScanner scanner = table.newScan().createBatchScanner(bucket, latest.getSnapshotId(b).getAsLong())) {
            for (CloseableIterator<InternalRow> batch; (batch = scanner.pollBatch(Duration.ofSeconds(1))) != null; ) {
              try (CloseableIterator<InternalRow> each = batch) {
                while (each.hasNext()) {
                  InternalRow row = each.next();
                  n++;
                  s += row.getInt(0) + row.getString(1).getSizeInBytes() + (long) row.getDouble(2);
                }
              }
            }
          }
          rows.addAndGet(n);
          sum.addAndGet(s);
          return null;
        });
      }
      for (Future<Void> done : readers.invokeAll(work)) {
        done.get();
      }
    } finally {
      readers.shutdown();
    }
    Map<String, Object> answer = new LinkedHashMap<>();
    answer.put("wall_ns", System.nanoTime() - begun);
    answer.put("cpu_ns", processCpu() - cpu);
    answer.put("rows", rows.get());
    answer.put("sum", sum.get());
    return answer;
  }

  private static byte[] fill(byte[] text, long i) {
    long h = mix(i);
    for (int j = 0; j < text.length; j += 8) {
      for (int z = 0; z < 8; z++) {
        text[j + z] = (byte) ('a' + ((h >>> (z * 8)) & 15));
      }
      h = mix(h);
    }
    return text;
  }

  /** SplitMix64. */
  private static long mix(long x) {
    x += 0x9e3779b97f4a7c15L;
    x = (x ^ (x >>> 30)) * 0xbf58476d1ce4e5b9L;
    x = (x ^ (x >>> 27)) * 0x94d049bb133111ebL;
    return x ^ (x >>> 31);
  }

  private static long processCpu() {
    return ((OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
  }
}
