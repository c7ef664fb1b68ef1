import static java.nio.charset.StandardCharsets.UTF_8;

import java.io.PrintStream;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;
import org.apache.flink.table.api.TableResult;
import org.apache.flink.types.Row;
import org.apache.flink.util.CloseableIterator;

/**
 * Runs the statements of its standard input, each of which ends with a semicolon at the end of a line, in batch mode. Prints a line
 * `statement` for each, and below it its rows, or a line with the messages of its error.
 */
public final class Statements {
  /** Of a message: the parser lists all words that it knows. */
  private static final int LONGEST = 500;

  public static void main(String[] arguments) throws Exception {
    Configuration conf = new Configuration();
    for (String key : new String[] {"rest.bind-address", "jobmanager.bind-host", "taskmanager.bind-host", "taskmanager.host"}) {
      conf.setString(key, "127.0.0.1");
    }
    conf.setString("parallelism.default", "1");
    conf.setString("table.local-time-zone", "UTC");
    TableEnvironment tables =
        TableEnvironment.create(EnvironmentSettings.newInstance().inBatchMode().withConfiguration(conf).build());
    PrintStream out = new PrintStream(System.out, true, UTF_8);
    for (String statement : new String(System.in.readAllBytes(), UTF_8).strip().split(";\\s*(\n|$)")) {
      out.println("statement");
      try {
        TableResult result = tables.executeSql(statement);
        if (statement.matches("(?s)(select|show) .*")) {
          try (CloseableIterator<Row> rows = result.collect()) {
            rows.forEachRemaining(out::println);
          }
        } else if (result.getJobClient().isPresent()) {
          // Not await(): it asks the cluster of the job, which ends with the job, and the cause of a failure would be lost.
          result.getJobClient().get().getJobExecutionResult().get();
        }
      } catch (Exception error) {
        out.println("error: " + messages(error));
      }
    }
  }

  private static String messages(Throwable error) {
    StringBuilder found = new StringBuilder();
    for (Throwable each = error; each != null; each = each.getCause()) {
      String message = String.valueOf(each.getMessage()).replace('\n', ' ');
      found.append(each.getClass().getSimpleName() + ": " + message.substring(0, Math.min(message.length(), LONGEST)) + " | ");
    }
    return found.toString();
  }
}
