"""The hooks of the site (``mkdocs.yml``): findings, schemas, reports of examples, links, address.

The same files are read in a checkout, where a link is a path, and on the site, where it isn't. So
links are written as paths, and turned here into what the site needs.
"""

from __future__ import annotations

import posixpath
import re
import tomllib
from pathlib import Path
from typing import Any

from dlprof.report.export.formats import render_html
from dlprof.store import read_run

ROOT = Path(__file__).parents[1]
EXPLAIN = "dlprof/explain/"
EXAMPLES = "examples/"
SCHEMAS = "dlprof/schema/"
_FINDINGS = "findings/"
_SAMPLES = "samples/"
_SCHEMAS = "schema/"
_RUN = ".dlprof.jsonl"
_LINK = re.compile(r"\]\((?P<path>(?:\.\./)+[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")
_CODE = re.compile(r"(?<!\[)`(?P<code>[a-z_.]+)`(?!\])")


def codes() -> list[str]:
    """The findings that have a page."""
    return sorted(path.stem for path in (ROOT / EXPLAIN).glob("*.md"))


def on_config(config: Any) -> Any:
    """Name the project's address, and every finding in the navigation."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    config.repo_url = project["urls"]["Repository"]
    config.repo_name = project["name"]  # what MkDocs makes of an address, it has made by now
    for entry in config.nav:
        entry.get("Findings", []).extend({code: f"{_FINDINGS}{code}.md"} for code in codes())
    return config


def on_files(files: Any, config: Any) -> Any:
    """Take findings' pages and schemas from the package, and make a report of every example."""
    from mkdocs.structure.files import File  # only the site's environment has it

    for code in codes():
        path = ROOT / EXPLAIN / f"{code}.md"
        files.append(File.generated(config, f"{_FINDINGS}{code}.md", abs_src_path=str(path)))
    for path in sorted((ROOT / SCHEMAS).glob("*.json")):
        files.append(File.generated(config, _SCHEMAS + path.name, abs_src_path=str(path)))
    for path in sorted((ROOT / EXAMPLES).glob(f"*{_RUN}")):
        page = render_html(read_run(path))
        files.append(File.generated(config, sample_of(EXAMPLES + path.name), content=page))
    return files


def sample_of(example: str) -> str:
    """The page of an example's report."""
    return _SAMPLES + example.removeprefix(EXAMPLES).removesuffix(_RUN) + ".html"


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Lead links where the site has what they name."""
    del files
    name = page.file.src_uri
    if name.startswith(_FINDINGS) and not name.endswith("index.md"):
        markdown = linked(markdown)
    return relinked(markdown, name, config.repo_url)


def linked(page: str) -> str:
    """A finding's page whose last section links the findings that it names."""
    body, heading, last = page.partition("\n## See also\n")
    known = codes()

    def link(match: re.Match[str]) -> str:
        code = match["code"]
        return f"[`{code}`]({code}.md)" if code in known else match[0]

    return body + heading + _CODE.sub(link, last)


def relinked(page: str, name: str, address: str) -> str:
    """A page whose links out of ``docs/`` lead to what the site has of it, or to the source.

    It has findings, schemas, and reports of examples.

    Args:
        page: Its Markdown.
        name: Its path below ``docs/``.
        address: Of the project's source.
    """
    folder = posixpath.dirname(name)

    def link(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", folder, match["path"]))
        anchor = match["anchor"] or ""
        if path.startswith("docs/"):
            return match[0]
        if path.startswith(EXPLAIN):
            return f"]({posixpath.relpath(_FINDINGS + path.removeprefix(EXPLAIN), folder)}{anchor})"
        if path.startswith(SCHEMAS):
            return f"]({posixpath.relpath(_SCHEMAS + path.removeprefix(SCHEMAS), folder)})"
        if path.startswith(EXAMPLES) and path.endswith(_RUN):
            return f"]({posixpath.relpath(sample_of(path), folder)})"
        return f"]({address}/blob/main/{path}{anchor})"

    return _LINK.sub(link, page)
