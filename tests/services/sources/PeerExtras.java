package peers;
import java.util.*; import java.util.function.*; import java.util.regex.Pattern;
import org.apache.lucene.analysis.TokenStream; import org.apache.lucene.analysis.pattern.PatternCaptureGroupTokenFilter;
import org.apache.lucene.analysis.miscellaneous.RemoveDuplicatesTokenFilter; import org.apache.lucene.analysis.email.UAX29URLEmailTokenizer;
import org.elasticsearch.Build; import org.elasticsearch.cluster.metadata.*; import org.elasticsearch.cluster.node.DiscoveryNodes; import org.elasticsearch.cluster.service.ClusterService;
import org.elasticsearch.client.internal.node.NodeClient; import org.elasticsearch.common.io.stream.NamedWriteableRegistry; import org.elasticsearch.common.settings.*;
import org.elasticsearch.features.NodeFeature; import org.elasticsearch.index.analysis.*; import org.elasticsearch.indices.analysis.AnalysisModule.AnalysisProvider;
import org.elasticsearch.plugins.*; import org.elasticsearch.rest.*;
/** what the distribution's rest-root and analysis-common modules would give and Maven Central lacks: GET/HEAD /, and the analysis parts .security-7 needs */
public class PeerExtras extends Plugin implements ActionPlugin, AnalysisPlugin {
  private ClusterService cs;
  @Override public Collection<?> createComponents(PluginServices s) { cs = s.clusterService(); return List.of(); }
  @Override public Collection<RestHandler> getRestHandlers(Settings s, NamedWriteableRegistry r, RestController c, ClusterSettings cl, IndexScopedSettings i, SettingsFilter f,
      IndexNameExpressionResolver n, Supplier<DiscoveryNodes> d, Predicate<NodeFeature> p) {
    return List.of(new BaseRestHandler() {
      public String getName() { return "peer_main"; }
      public List<Route> routes() { return List.of(new Route(RestRequest.Method.GET, "/"), new Route(RestRequest.Method.HEAD, "/")); }
      protected RestChannelConsumer prepareRequest(RestRequest q, NodeClient client) {
        return ch -> { var b = ch.newBuilder(); var v = Build.current(); b.prettyPrint().startObject();
          b.field("name", cs.localNode().getName()).field("cluster_name", cs.getClusterName().value()).field("cluster_uuid", cs.state().metadata().clusterUUID());
          b.startObject("version").field("number", v.version()).field("build_flavor", "default").field("build_type", v.type().displayName()).field("build_hash", v.hash()).field("build_date", v.date())
            .field("build_snapshot", v.isSnapshot()).field("lucene_version", org.apache.lucene.util.Version.LATEST.toString()).field("minimum_wire_compatibility_version", v.minWireCompatVersion())
            .field("minimum_index_compatibility_version", v.minIndexCompatVersion()).endObject().field("tagline", "You Know, for Search").endObject();
          ch.sendResponse(new RestResponse(RestStatus.OK, b)); }; }
    });
  }
  static TokenFilterFactory tf(String name, Settings s, UnaryOperator<TokenStream> f) { return new AbstractTokenFilterFactory(name, s) { public TokenStream create(TokenStream t) { return f.apply(t); } }; }
  @Override public Map<String, AnalysisProvider<TokenFilterFactory>> getTokenFilters() { return Map.of(
    "pattern_capture", AnalysisPlugin.requiresAnalysisSettings((i, e, n, s) -> { Pattern[] ps = s.getAsList("patterns").stream().map(Pattern::compile).toArray(Pattern[]::new); boolean keep = s.getAsBoolean("preserve_original", true);
      return tf(n, s, t -> new PatternCaptureGroupTokenFilter(t, keep, ps)); }),
    "lowercase", (i, e, n, s) -> tf(n, s, org.apache.lucene.analysis.LowerCaseFilter::new),
    "unique", (i, e, n, s) -> tf(n, s, RemoveDuplicatesTokenFilter::new)); }
  @Override public Map<String, AnalysisProvider<TokenizerFactory>> getTokenizers() { return Map.of(
    "uax_url_email", (i, e, n, s) -> TokenizerFactory.newFactory(n, UAX29URLEmailTokenizer::new)); }
}
