"""NATS: core, JetStream, Streaming."""
