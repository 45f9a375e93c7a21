import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.stream.IntStream;
import org.apache.fluss.client.admin.KvSnapshotLease;
import org.apache.fluss.client.admin.ListOffsetsResult;
import org.apache.fluss.client.admin.OffsetSpec;
import org.apache.fluss.client.metadata.KvSnapshotMetadata;
import org.apache.fluss.client.metadata.KvSnapshots;
import org.apache.fluss.client.metadata.LakeSnapshot;
import org.apache.fluss.fs.FsPathAndFileName;
import org.apache.fluss.metadata.TableBucket;
import org.apache.fluss.metadata.TableInfo;
import org.apache.fluss.metadata.TablePath;
import org.apache.fluss.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;

/** KV snapshots, leases on them, lake snapshots, and the offsets of logs. */
final class Snapshots {
  private static final Map<String, KvSnapshotLease> LEASES = new HashMap<>();

  private Snapshots() {}

  static void register(Map<String, Oracle.Operation> operations) {
    operations.put("latest_kv_snapshots", Snapshots::latest);
    operations.put("kv_snapshot_metadata", Snapshots::metadata);
    operations.put("wait_snapshots", Snapshots::await);
    operations.put("acquire_lease", Snapshots::acquire);
    operations.put("renew_lease", r -> LEASES.get(r.get("lease").asText()).renew().get());
    operations.put("release_lease", r -> LEASES.get(r.get("lease").asText()).releaseSnapshots(Set.of(bucket(r))).get());
    operations.put("drop_lease", r -> LEASES.remove(r.get("lease").asText()).dropLease().get());
    operations.put("lake_snapshot", Snapshots::lake);
    operations.put("list_offsets", Snapshots::offsets);
  }

  static KvSnapshots latest(TablePath path, Tables.Part part) throws Exception {
    return part.name() == null
        ? Oracle.admin.getLatestKvSnapshots(path).get()
        : Oracle.admin.getLatestKvSnapshots(path, part.name()).get();
  }

  private static Object latest(JsonNode request) throws Exception {
    String partition = Oracle.partition(request);
    KvSnapshots all = latest(Oracle.path(request), new Tables.Part(partition, null));
    List<Object> buckets = new ArrayList<>();
    for (int b : new TreeSet<>(all.getBucketIds())) {
      if (all.getSnapshotId(b).isPresent()) {
        buckets.add(Map.of("bucket", b, "snapshot", all.getSnapshotId(b).getAsLong(), "log_offset", all.getLogOffset(b).getAsLong()));
      }
    }
    Map<String, Object> answer = new LinkedHashMap<>();
    answer.put("table_id", all.getTableId());
    answer.put("partition_id", all.getPartitionId());
    answer.put("buckets", new TreeSet<>(all.getBucketIds()));
    answer.put("snapshots", buckets);
    return answer;
  }

  private static TableBucket bucket(JsonNode r) {
    Long partition = r.hasNonNull("partition_id") ? r.get("partition_id").asLong() : null;
    return new TableBucket(r.get("table_id").asLong(), partition, r.get("bucket").asInt());
  }

  private static Object metadata(JsonNode request) throws Exception {
    KvSnapshotMetadata m = Oracle.admin.getKvSnapshotMetadata(bucket(request), request.get("snapshot").asLong()).get();
    List<Object> files = new ArrayList<>();
    for (FsPathAndFileName f : m.getSnapshotFiles()) {
      files.add(Map.of("path", f.getPath().toString(), "name", f.getFileName()));
    }
    return Map.of("log_offset", m.getLogOffset(), "files", files);
  }

  /** Log end offsets by bucket, as clients see them. */
  static Map<Integer, Long> ends(TableInfo info, Tables.Part part) throws Exception {
    return list(info, part, new OffsetSpec.LatestSpec());
  }

  private static Map<Integer, Long> list(TableInfo info, Tables.Part part, OffsetSpec spec) throws Exception {
    List<Integer> buckets = IntStream.range(0, info.getNumBuckets()).boxed().toList();
    ListOffsetsResult result = part.name() == null
        ? Oracle.admin.listOffsets(info.getTablePath(), buckets, spec)
        : Oracle.admin.listOffsets(info.getTablePath(), part.name(), buckets, spec);
    return new TreeMap<>(result.all().get());
  }

  private static Object offsets(JsonNode request) throws Exception {
    OffsetSpec spec = request.hasNonNull("timestamp") ? new OffsetSpec.TimestampSpec(request.get("timestamp").asLong())
        : request.path("earliest").asBoolean() ? new OffsetSpec.EarliestSpec() : new OffsetSpec.LatestSpec();
    TableInfo info = Oracle.admin.getTableInfo(Oracle.path(request)).get();
    return list(info, new Tables.Part(Oracle.partition(request), null), spec);
  }

  /** Waits until the latest snapshot of every bucket covers what its log held at the call. */
  private static Object await(JsonNode request) throws Exception {
    TableInfo info = Oracle.admin.getTableInfo(Oracle.path(request)).get();
    long deadline = System.nanoTime() + request.get("timeout_ms").asLong() * 1_000_000;
    for (Tables.Part part : Tables.parts(request, info)) {
      Map<Integer, Long> ends = ends(info, part);
      while (!covered(latest(info.getTablePath(), part), ends)) {
        if (System.nanoTime() > deadline) {
          throw new IllegalStateException("no snapshot that covers " + ends);
        }
        Thread.sleep(100);
      }
    }
    return null;
  }

  private static boolean covered(KvSnapshots latest, Map<Integer, Long> ends) {
    return ends.entrySet().stream().allMatch(e -> e.getValue() == 0 || latest.getLogOffset(e.getKey()).orElse(-1) >= e.getValue());
  }

  private static Object acquire(JsonNode request) throws Exception {
    KvSnapshotLease lease = LEASES.computeIfAbsent(request.get("lease").asText(),
        id -> Oracle.admin.createKvSnapshotLease(id, request.get("duration_ms").asLong()));
    return lease.acquireSnapshots(Map.of(bucket(request), request.get("snapshot").asLong())).get().getUnavailableTableBucketSet().size();
  }

  private static Object lake(JsonNode request) throws Exception {
    TablePath path = Oracle.path(request);
    LakeSnapshot s = request.path("readable").asBoolean() ? Oracle.admin.getReadableLakeSnapshot(path).get()
        : request.hasNonNull("snapshot") ? Oracle.admin.getLakeSnapshot(path, request.get("snapshot").asLong()).get()
        : Oracle.admin.getLatestLakeSnapshot(path).get();
    List<Object> offsets = new ArrayList<>();
    s.getTableBucketsOffset().forEach((bucket, offset) -> {
      Map<String, Object> o = new LinkedHashMap<>();
      o.put("partition_id", bucket.getPartitionId());
      o.put("bucket", bucket.getBucket());
      o.put("log_offset", offset);
      offsets.add(o);
    });
    return Map.of("snapshot", s.getSnapshotId(), "offsets", offsets);
  }
}
