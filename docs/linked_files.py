"""A hook of MkDocs: files of the repository outside docs/ that a page links to become part of the site."""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel

ROOT = Path(__file__).parents[1]
OUTSIDE = re.compile(r"(?<=\]\()(?:\.\./)+[^)#\s]+")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for page in files.documentation_pages():

        def target(link: re.Match[str], page: File = page) -> str:
            path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page.src_uri), link[0]))
            if path.startswith("docs/") or not (ROOT / path).is_file():
                return link[0]  # MkDocs itself warns of files that are missing
            if files.get_file_from_path(path) is None:
                added = File.generated(config, path, abs_src_path=str(ROOT / path), inclusion=InclusionLevel.NOT_IN_NAV)
                files.append(added)
            return posixpath.relpath(path, posixpath.dirname(page.src_uri) or ".")

        page.content_string = OUTSIDE.sub(target, page.content_string)
    return files
