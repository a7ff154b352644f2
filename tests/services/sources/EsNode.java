import java.nio.file.Path;
import java.util.*;
import java.util.concurrent.TimeUnit;
import org.elasticsearch.common.logging.LogConfigurator;
import org.elasticsearch.common.settings.*;
import org.elasticsearch.env.Environment;
import org.elasticsearch.node.*;
import org.elasticsearch.plugins.PluginsLoader;

/** Starts org.elasticsearch.node.Node from es.path.home (lib, modules, plugins) and es.path.conf. */
public class EsNode {
  public static void main(String[] a) throws Exception {
    Path home = Path.of(System.getProperty("es.path.home")), conf = Path.of(System.getProperty("es.path.conf"));
    LogConfigurator.registerErrorListener();
    LogConfigurator.configureESLogging();
    Settings.Builder b = Settings.builder().put("path.home", home.toString());
    LogConfigurator.setNodeName("node-1");
    LogConfigurator.configure(InternalSettingsPreparer.prepareEnvironment(b.build(), Map.of(), conf, () -> "node-1"), true);
    String pw = System.getenv("ES_BOOTSTRAP_PASSWORD");
    if (pw != null) b.setSecureSettings(new Memory(Map.of("bootstrap.password", pw, "keystore.seed", "0123456789abcdefghij")));
    Environment env = InternalSettingsPreparer.prepareEnvironment(b.build(), Map.of(), conf, () -> "node-1");
    Node node = new Node(env, PluginsLoader.createPluginsLoader(PluginsLoader.loadModulesBundles(env.modulesDir()),
        PluginsLoader.loadPluginsBundles(env.pluginsDir()), Map.of(), false));   // false: everything on the class path
    Runtime.getRuntime().addShutdownHook(new Thread(() -> {
      try { node.prepareForClose(); node.close(); node.awaitClose(10, TimeUnit.SECONDS); } catch (Exception e) { e.printStackTrace(); }
    }));
    node.start();
    Thread.currentThread().join();
  }

  record Memory(Map<String, String> m) implements SecureSettings {
    public boolean isLoaded() { return true; }
    public Set<String> getSettingNames() { return m.keySet(); }
    public SecureString getString(String k) { return new SecureString(m.get(k).toCharArray()); }
    public java.io.InputStream getFile(String k) { throw new UnsupportedOperationException(); }
    public byte[] getSHA256Digest(String k) {
      try { return java.security.MessageDigest.getInstance("SHA-256").digest(m.get(k).getBytes()); } catch (Exception e) { throw new RuntimeException(e); }
    }
    public void close() {}
    public void writeTo(org.elasticsearch.common.io.stream.StreamOutput o) {}
  }
}
