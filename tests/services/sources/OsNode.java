import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.opensearch.common.logging.LogConfigurator;
import org.opensearch.common.settings.Settings;
import org.opensearch.env.Environment;
import org.opensearch.node.InternalSettingsPreparer;
import org.opensearch.node.Node;
import org.opensearch.transport.Netty4Plugin;

/** Starts org.opensearch.node.Node with HTTP over Netty; its folder is peer.home, its configuration peer.conf. */
public class OsNode {
  public static void main(String[] a) throws Exception {
    Path home = Path.of(System.getProperty("peer.home")), conf = Path.of(System.getProperty("peer.conf"));
    Settings settings = Settings.builder().put("path.home", home.toString()).build();
    LogConfigurator.registerErrorListener();
    LogConfigurator.setNodeName("node-1");
    Environment env = InternalSettingsPreparer.prepareEnvironment(settings, Map.of(), conf, () -> "node-1");
    LogConfigurator.configure(env);
    Node node = new Node(env, List.of(Netty4Plugin.class), true) {};
    Runtime.getRuntime().addShutdownHook(new Thread(() -> {
      try { node.close(); node.awaitClose(10, TimeUnit.SECONDS); } catch (Exception e) { e.printStackTrace(); }
    }));
    node.start();
    Thread.currentThread().join();
  }
}
