import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Iterator;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import org.apache.fluss.client.Connection;
import org.apache.fluss.client.ConnectionFactory;
import org.apache.fluss.client.admin.Admin;
import org.apache.fluss.config.Configuration;
import org.apache.fluss.metadata.TablePath;
import org.apache.fluss.shaded.jackson2.com.fasterxml.jackson.databind.JsonNode;
import org.apache.fluss.shaded.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.fluss.shaded.jackson2.com.fasterxml.jackson.databind.node.ObjectNode;

/**
 * Fluss's own Java client behind lines of JSON, as a judge of what Sluice reads and
 * writes.
 *
 * <p>Standard input has one request a line, {"op":name,…}; the first is {"op":"connect",
 * "config":{…}} with options of the client. Standard output answers each with any number
 * of {"row":…} and one {"result":…} or {"error":{"type":simple class name,"message":…}}.
 * The operations are the entries of {@link #main}; oracle.go has their arguments. The
 * program ends with its input.
 */
public final class Oracle {
  /** An operation: its result, or null. */
  interface Operation {
    Object run(JsonNode request) throws Exception;
  }

  static final ObjectMapper JSON = new ObjectMapper();
  static Connection connection;
  static Admin admin;
  private static PrintStream out;

  private Oracle() {}

  public static void main(String[] args) throws Exception {
    out = new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);
    System.setOut(System.err); // whatever a library prints must not look like an answer
    Map<String, Operation> operations = new TreeMap<>();
    operations.put("connect", Oracle::connect);
    Tables.register(operations);
    Writes.register(operations);
    Reads.register(operations);
    Snapshots.register(operations);
    Cluster.register(operations);
    Load.register(operations);
    BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line; (line = in.readLine()) != null; ) {
      answer(operations, JSON.readTree(line));
    }
    Runtime.getRuntime().halt(0); // the client's threads would linger
  }

  private static void answer(Map<String, Operation> operations, JsonNode request) throws Exception {
    ObjectNode answer = JSON.createObjectNode();
    try {
      Operation operation = operations.get(request.get("op").asText());
      if (operation == null) {
        throw new IllegalArgumentException("no operation " + request.get("op"));
      }
      answer.set("result", JSON.valueToTree(operation.run(request)));
    } catch (Throwable t) {
      Throwable cause = t;
      while (cause.getCause() != null && (cause instanceof ExecutionException || cause instanceof CompletionException)) {
        cause = cause.getCause();
      }
      cause.printStackTrace();
      String message = String.valueOf(cause.getMessage());
      for (Throwable c = cause.getCause(); c != null; c = c.getCause()) {
        message += "; because of " + c;
      }
      answer.putObject("error").put("type", cause.getClass().getSimpleName()).put("message", message);
    }
    out.println(JSON.writeValueAsString(answer));
    out.flush();
  }

  /** Answers a row before the result. */
  static void row(JsonNode row) throws Exception {
    ObjectNode line = JSON.createObjectNode();
    line.set("row", row);
    out.println(JSON.writeValueAsString(line));
  }

  private static Object connect(JsonNode request) throws Exception {
    Configuration config = configuration(request.path("config"));
    if (connection != null) {
      connection.close();
    }
    connection = ConnectionFactory.createConnection(config);
    admin = connection.getAdmin();
    return null;
  }

  private static Configuration configuration(JsonNode options) {
    Configuration config = new Configuration();
    for (Iterator<Map.Entry<String, JsonNode>> it = options.fields(); it.hasNext(); ) {
      Map.Entry<String, JsonNode> option = it.next();
      config.setString(option.getKey(), option.getValue().asText());
    }
    return config;
  }

  static TablePath path(JsonNode request) {
    return TablePath.of(request.get("database").asText(), request.get("table").asText());
  }

  /** The partition's name, or null. */
  static String partition(JsonNode request) {
    return request.hasNonNull("partition") ? request.get("partition").asText() : null;
  }
}
