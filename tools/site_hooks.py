"""Hooks of the documentation site: links out of docs/, formulas, and what is published.

Pages are written for two readers. On a code host, links such as `../benchmarks/pool.py` lead to
the file. The site has no such file, nor those of `exclude_docs`: there, the name of the file is
shown instead of a link.
"""

import html
import logging
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File

LOG = logging.getLogger("mkdocs.plugins.r2r2")  # its warnings fail a strict build

GENERATED = {"CHANGELOG.md": "changelog.md"}  # pages made from files outside docs/

FENCE = re.compile(r"^(```.*?^```|~~~.*?^~~~)", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\((?![a-z]+:|/|#)([^)\s#]+)(#[^)\s]*)?\)")
FORMULA = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<tex>.*?)\\[)\]]</(?P=tag)>', re.DOTALL
)

# Of the theme: the sitemap holds the build date, the page for 404 errors expects a web server
# that knows it, and the rest is for debugging and for search in other languages.
UNUSED = ("sitemap.xml*", "404.html", "assets/**/*.map", "assets/javascripts/lunr")
# The theme would load Mermaid from there.
OTHER_HOSTS = re.compile(r"https://unpkg\.com/[^\"'`]*")
DOWNLOADS = re.compile(r'<span class="links">(<a href="(tables|figures)/[^<]*</a>)+</span>')


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are made from files outside docs/."""
    for name, page in GENERATED.items():
        source = Path(config.config_file_path).parent / name
        files.append(File.generated(config, page, content=source.read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Replace links to files of the repository that are not part of the site."""
    docs = Path(config.docs_dir)
    generated = page.file.src_uri in GENERATED.values()
    folder = docs.parent if generated else (docs / page.file.src_uri).parent

    def replace(link: re.Match[str]) -> str:
        text, target, anchor = link.groups()
        path = (folder / target).resolve()
        if path.is_relative_to(docs):
            inside = path.relative_to(docs).as_posix()
            file = files.get_file_from_path(inside)
            if file is None or not file.inclusion.is_excluded():
                # MkDocs follows it, and reports one that leads nowhere
                return f"[{text}]({inside}{anchor or ''})" if generated else link[0]
        if not path.exists():
            LOG.warning("%s: link to %r, which does not exist", page.file.src_uri, target)
        name = path.relative_to(docs.parent).as_posix()
        if name in GENERATED:
            up = "../" * page.file.src_uri.count("/")
            return f"[{text}]({up}{GENERATED[name]})"
        return text if name in text else f"{text} (`{name}`)"

    return "".join(
        part if FENCE.match(part) else LINK.sub(replace, part) for part in FENCE.split(markdown)
    )


def on_page_content(content: str, page: Any, config: Any, files: Any) -> str:
    """Write formulas as MathML, which browsers show without scripts."""

    def replace(formula: re.Match[str]) -> str:
        display = "block" if formula["tag"] == "div" else "inline"
        return convert(html.unescape(formula["tex"].strip()), display=display)

    return FORMULA.sub(replace, content)


def on_post_build(config: Any) -> None:
    """Remove what the site does not need, and every address of another host in scripts."""
    site = Path(config.site_dir)
    for path in [path for pattern in UNUSED for path in site.glob(pattern)]:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    _rewrite(site.glob("assets/javascripts/*.js"), lambda text: OTHER_HOSTS.sub("", text))
    # The report's tables and figures are not published; its page shows them.
    _rewrite(site.glob("example_report/index.html"), lambda text: DOWNLOADS.sub("", text))


def _rewrite(paths: Iterator[Path], change: Callable[[str], str]) -> None:
    for path in paths:
        path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")
