"""How `make docs` builds the pages as a site. The source is the whole repository, so that links to its files work."""

project = "Bucketwire"
extensions = ["myst_parser", "sphinxcontrib.mermaid"]
source_suffix = {".md": "markdown"}
root_doc = "docs/index"
include_patterns = [
    "docs/*.md",
    "docs/**/*.md",
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "CODE_OF_CONDUCT.md",
    "SECURITY.md",
    "THIRD-PARTY-NOTICES.md",
    "bench/*.md",
    "examples/*.md",
    "examples/**/*.md",
]
html_theme = "furo"
html_title = "Bucketwire"
myst_heading_anchors = 4  # as GitHub makes them; tests/unit/test_docs.py checks them without Sphinx
myst_fence_as_directive = ["mermaid"]
myst_links_external_new_tab = True
