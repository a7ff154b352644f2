"""The only package that imports OpenTelemetry; `app.telemetry` imports it if something is to be exported."""
