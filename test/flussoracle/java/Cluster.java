import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.apache.fluss.client.FlussConnection;
import org.apache.fluss.client.metadata.MetadataUpdater;
import org.apache.fluss.cluster.BucketLocation;
import org.apache.fluss.cluster.ServerNode;
import org.apache.fluss.cluster.rebalance.GoalType;
import org.apache.fluss.cluster.rebalance.RebalanceProgress;
import org.apache.fluss.cluster.rebalance.RebalanceStatus;
import org.apache.fluss.cluster.rebalance.ServerTag;
import org.apache.fluss.metadata.TableBucket;
import org.apache.fluss.metadata.TableInfo;
import org.apache.fluss.security.acl.AccessControlEntry;
import org.apache.fluss.security.acl.AccessControlEntryFilter;
import org.apache.fluss.security.acl.AclBinding;
import org.apache.fluss.security.acl.AclBindingFilter;
import org.apache.fluss.security.acl.FlussPrincipal;
import org.apache.fluss.security.acl.OperationType;
import org.apache.fluss.security.acl.PermissionType;
import org.apache.fluss.security.acl.Resource;
import org.apache.fluss.security.acl.ResourceFilter;
import org.apache.fluss.security.acl.ResourceType;
import org.apache.fluss.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;

/** Servers, leaders, rebalancing and ACLs. */
final class Cluster {
  private Cluster() {}

  static void register(Map<String, Oracle.Operation> operations) {
    operations.put("servers", Cluster::servers);
    operations.put("locations", Cluster::locations);
    operations.put("tag_server", r -> Oracle.admin.addServerTag(List.of(r.get("server").asInt()), ServerTag.TEMPORARY_OFFLINE).get());
    operations.put("untag_server", r -> Oracle.admin.removeServerTag(List.of(r.get("server").asInt()), ServerTag.TEMPORARY_OFFLINE).get());
    operations.put("rebalance", Cluster::rebalance);
    operations.put("create_acls", r -> Oracle.admin.createAcls(bindings(r)).all().get());
    operations.put("drop_acls", r -> Oracle.admin.dropAcls(bindings(r).stream().map(Cluster::exactly).toList()).all().get().size());
    operations.put("list_acls", r -> Oracle.admin.listAcls(AclBindingFilter.ANY).get().stream().map(Cluster::describe).toList());
  }

  private static Object servers(JsonNode request) throws Exception {
    List<Object> answer = new ArrayList<>();
    for (ServerNode n : Oracle.admin.getServerNodes().get()) {
      answer.add(Map.of("id", n.id(), "address", n.host() + ":" + n.port(), "type", n.serverType().name()));
    }
    return answer;
  }

  /** Leader and replicas of every bucket, asked anew. */
  private static Object locations(JsonNode request) throws Exception {
    TableInfo info = Oracle.admin.getTableInfo(Oracle.path(request)).get();
    MetadataUpdater updater = ((FlussConnection) Oracle.connection).getMetadataUpdater();
    updater.updateTableOrPartitionMetadata(info.getTablePath(), null); // it knows no partitions of unknown tables
    List<Object> answer = new ArrayList<>();
    for (Tables.Part part : Tables.parts(request, info)) {
      updater.updateTableOrPartitionMetadata(info.getTablePath(), part.id());
      for (int b = 0; b < info.getNumBuckets(); b++) {
        Optional<BucketLocation> at = updater.getBucketLocation(new TableBucket(info.getTableId(), part.id(), b));
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("partition", part.name());
        line.put("partition_id", part.id());
        line.put("bucket", b);
        line.put("leader", at.map(BucketLocation::getLeader).orElse(null));
        line.put("replicas", at.map(BucketLocation::getReplicas).orElse(new int[0]));
        answer.add(line);
      }
    }
    return answer;
  }

  /** Starts a rebalance and waits until it is over. */
  private static Object rebalance(JsonNode request) throws Exception {
    List<GoalType> goals = new ArrayList<>();
    request.get("goals").forEach(g -> goals.add(GoalType.valueOf(g.asText())));
    String id = Oracle.admin.rebalance(goals).get();
    while (true) {
      Optional<RebalanceProgress> progress = Oracle.admin.listRebalanceProgress(id).get();
      RebalanceStatus status = progress.map(RebalanceProgress::status).orElse(null);
      if (status == null || RebalanceStatus.FINAL_STATUSES.contains(status)) {
        return String.valueOf(status);
      }
      Thread.sleep(50);
    }
  }

  private static List<AclBinding> bindings(JsonNode request) {
    List<AclBinding> bindings = new ArrayList<>();
    for (JsonNode acl : request.get("acls")) {
      bindings.add(new AclBinding(
          new Resource(ResourceType.valueOf(acl.get("resource_type").asText()), acl.get("resource").asText()),
          new AccessControlEntry(new FlussPrincipal(acl.get("user").asText(), "User"), acl.path("host").asText("*"),
              OperationType.valueOf(acl.get("operation").asText()), PermissionType.ALLOW)));
    }
    return bindings;
  }

  private static AclBindingFilter exactly(AclBinding b) {
    AccessControlEntry e = b.getAccessControlEntry();
    return new AclBindingFilter(new ResourceFilter(b.getResource().getType(), b.getResource().getName()),
        new AccessControlEntryFilter(e.getPrincipal(), e.getHost(), e.getOperationType(), e.getPermissionType()));
  }

  private static Map<String, String> describe(AclBinding b) {
    AccessControlEntry e = b.getAccessControlEntry();
    return Map.of("resource_type", b.getResource().getType().name(), "resource", b.getResource().getName(),
        "user", e.getPrincipal().getName(), "host", e.getHost(), "operation", e.getOperationType().name());
  }
}
