"""Reports as HTML, CSV and JSON."""
