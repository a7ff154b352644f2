import org.elasticmq.rest.sqs.SQSRestServerBuilder$;

/** ElasticMQ on a port of 127.0.0.1, without login and in memory; its jars have no main class. */
public class ElasticMq {
    public static void main(String[] words) {
        int port = Integer.parseInt(words[0]);
        SQSRestServerBuilder$.MODULE$.withInterface("127.0.0.1").withPort(port).start().waitUntilStarted();
    }
}
