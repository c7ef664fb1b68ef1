"""The configuration of the documentation site. `make docs` builds it into build/docs."""

from importlib.metadata import version as version_of
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parent.parent
MERMAID = ROOT / "web/node_modules/@mermaid-js/tiny/dist/mermaid.tiny.js"

project = "Paceline"
copyright = "the authors of Paceline"
version = release = version_of("paceline")

# The pages are built from the root of the checkout, so the same links work in the files and on the site.
root_doc = "docs/index"
include_patterns = ["docs/**.md", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "bench/README.md", "config/README.md"]
exclude_patterns = ["build/**"]

extensions = ["myst_parser"]
myst_heading_anchors = 3
myst_fence_as_directive = ["mermaid"]
# The highlighter does not know every version of a language, and a page shows deliberate errors.
suppress_warnings = ["misc.highlighting_failure"]

# A block without a language is output or a help text: it has no colors.
highlight_language = "none"

html_theme = "furo"
html_title = "Paceline"
html_css_files = ["site.css"]
html_show_copyright = False
html_copy_source = False
html_static_path = ["site/static"]
html_extra_path = ["site/root"]  # an index.html that leads to docs/index.html
if MERMAID.exists():
    html_static_path.append(str(MERMAID))
    html_js_files = ["mermaid.tiny.js", "mermaid_start.js"]


class Mermaid(Directive):
    """A Mermaid diagram: text that mermaid.tiny.js replaces by a drawing in the browser."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        text = nodes.Text("\n".join(self.content)).astext()
        escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        return [nodes.raw("", f'<pre class="mermaid">\n{escaped}\n</pre>', format="html")]


def setup(app: Sphinx) -> None:
    app.add_directive("mermaid", Mermaid)
