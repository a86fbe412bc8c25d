#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the documentation's site: pages with a search that works without a network.

    python/tools/make_site.py [--stage-only] [FOLDER]

FOLDER is build/site/html unless given; what an earlier run made there is replaced. The pages are
README.md, those of docs/, and what they link to; a link to a source leads to a copy of it. A page
more is the reference of the Python package, from its docstrings. Sphinx makes them, in an
environment of its own (build/site/venv), which the first run fetches from the package index, and
into which each run builds the package: that takes a C compiler and CMake. --stage-only ends before
that and needs nothing: it finds pages that no chapter names, and dead links.

Exit status: 0 when the site is made and each link leads to something; 1 otherwise; 2 for wrong
arguments.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PLACE = ROOT / "build" / "site"
GENERATOR = ["sphinx>=7", "myst-parser>=3", "furo"]
MARK = ".made-by-make_site"
LINK = re.compile(r"(?<!`)\]\(([^)#\s]+)")
TO_EXTRAS = re.compile(r"\[([^]]+)\]\((?:\.\./)*extras/[^)]*\)")

# The nine pages for users, then what is short, what is looked up, and what is for contributors.
CHAPTERS = {
    "Use": ["README.md", "docs/README.md", "docs/pytorch-in-five-minutes.md",
            "docs/from-expandable-segments.md", "docs/out-of-memory.md", "docs/report.md",
            "docs/settings.md", "docs/sleep.md", "extras/preload/README.md", "docs/python.md",
            "docs/contract.md"],
    "One thing each": ["docs/launchers.md", "docs/cupy.md", "docs/numba.md", "docs/rmm.md",
                       "docs/c.md", "docs/monitoring.md", "docs/debugging.md", "docs/elastic.md",
                       "docs/spilling.md",
                       "docs/sharing.md", "docs/pools.md", "docs/integrating.md",
                       "docs/how-it-works.md", "docs/comparison.md", "docs/versions.md",
                       "docs/security.md"],
    "Reference": ["docs/pytorch.md", "docs/tuning.md", "docs/changelog.md"],
    "Measurements": ["docs/benchmarking.md", "bench/traces/README.md", "bench/results/README.md"],
    "Contributors": ["docs/dev/contributing.md", "docs/dev/architecture.md", "docs/dev/recipes.md",
                     "docs/dev/glossary.md", "docs/dev/invariants.md", "docs/dev/proofs.md",
                     "docs/dev/promises.md", "docs/dev/testing.md", "docs/dev/interface.md",
                     "docs/dev/packaging.md",
                     "vmm/virtual/README.md"],
}  # fmt: skip
# A tree without extras has none of their pages, and links to them are left out.
EXTRAS = ROOT / "extras"
if EXTRAS.exists():
    extras = [EXTRAS / "README.md", *sorted(EXTRAS.glob("*/README.md"))]
    paths = [page.relative_to(ROOT).as_posix() for page in extras]
    CHAPTERS["Extras"] = [path for path in paths if path not in CHAPTERS["Use"]]
else:
    CHAPTERS["Use"].remove("extras/preload/README.md")
# Made with the site: name, and chapter.
REFERENCE, AMONG = "docs/reference.md", "Reference"
MODULES = ("ductile_gpu", "ductile_gpu.torch", "ductile_gpu.interface")
DECISIONS = "docs/dev/decisions"
INDEX = f"{DECISIONS}/README.md"


class Dead(Exception):
    """What a reader of the site would stumble over."""


# ---- Which files ---------------------------------------------------------------------------------


def decision_pages() -> list[str]:
    pages = sorted(set((ROOT / DECISIONS).glob("*.md")) - {ROOT / INDEX})
    return [INDEX, *(f"{DECISIONS}/{page.name}" for page in pages)]


def pages() -> list[str]:
    return [page for chapter in CHAPTERS.values() for page in chapter] + decision_pages()


def unnamed_pages() -> list[str]:
    there = {page.relative_to(ROOT).as_posix() for page in (ROOT / "docs").rglob("*.md")}
    return sorted(there - set(pages()))


def text_of(page: str) -> str:
    text = (ROOT / page).read_text(encoding="utf-8")
    return text if EXTRAS.exists() else TO_EXTRAS.sub(r"\1", text)


def links_of(page: str) -> list[str]:
    """Files of the repository that a page links to, as paths from its root."""
    found = []
    for target in LINK.findall(text_of(page)):
        if not re.match(r"[a-z]+:", target):
            path = Path(os.path.normpath(Path(page).parent / target))
            found.append(path.as_posix())
    return found


def linked_files() -> list[str]:
    found = set()
    for page in pages():
        for target in links_of(page):
            if not (ROOT / target).exists():
                raise Dead(f"{page} links to {target}, which does not exist")
            found.add(target)
    return sorted(found)


# ---- Staging -------------------------------------------------------------------------------------


def copy_into(stage: Path, path: str) -> None:
    source, target = ROOT / path, stage / path
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_file():
        shutil.copyfile(source, target)


def point_folders_at_pages(stage: Path) -> None:
    """A link to a folder leads to its page here: a site without a server lists no folders."""
    for page in pages():
        text = text_of(page)
        for target in links_of(page):
            if (ROOT / target).is_dir():
                base = os.path.relpath(target, Path(page).parent)
                text = re.sub(rf"\]\({re.escape(base)}/?\)", f"]({base}/README.md)", text)
        (stage / page).write_text(text, encoding="utf-8")


def reference() -> str:
    """The page of which Sphinx makes the package's reference."""
    parts = "\n".join(f".. automodule:: {module}" for module in MODULES)
    return (
        "# Reference of the Python package\n\n"
        "[Python](python.md) and [PyTorch](pytorch.md) explain; the modules for [CuPy](cupy.md), "
        "[Numba](numba.md) and [RMM](rmm.md) have pages of their own. [Tuning](tuning.md#options) "
        f"has each key of `Options`, its default and meaning.\n\n```{{eval-rst}}\n{parts}\n```\n"
    )


def stage_into(stage: Path) -> None:
    missing = unnamed_pages()
    if missing:
        raise Dead(f"no chapter names {', '.join(missing)}: add them to CHAPTERS")
    shutil.rmtree(stage, ignore_errors=True)
    for path in {*pages(), *linked_files()}:
        copy_into(stage, path)
    for picture in (ROOT / "docs" / "images").iterdir():
        copy_into(stage, picture.relative_to(ROOT).as_posix())
    point_folders_at_pages(stage)
    (stage / REFERENCE).write_text(reference(), encoding="utf-8")


# ---- The generator -------------------------------------------------------------------------------

SETTINGS = {
    "project": "Ductile",
    "root_doc": "README",
    "extensions": ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"],
    "html_theme": "furo",
    "html_copy_source": False,
    "html_show_copyright": False,
    "myst_heading_anchors": 4,
    "smartquotes": False,  # docstrings have code without marks
    "autodoc_member_order": "bysource",
    "autodoc_default_options": {
        "members": True,
        "undoc-members": True,  # members of enumerations
        "show-inheritance": True,
        # Where what is inherited ends: classes of Python, and what is the same for all of ours.
        "inherited-members": "BaseException, Enum, dict, int, tuple, Closes, Ends, Unique",
    },
    # A link to a part of a source file, and words for languages that the highlighter does not know.
    # ref.python: `bytes` of an annotation, which two named tuples have as a field, too
    "suppress_warnings": ["misc.highlighting_failure", "ref.python", "toc.not_included"],
}


FIRST_PAGE = """<!doctype html>
<meta http-equiv="refresh" content="0; url=README.html">
<title>Ductile</title>
"""


def contents() -> str:
    """The chapters, as the first page's hidden table of contents."""
    chapters = {**CHAPTERS, "Decisions": decision_pages()}
    chapters[AMONG] = [*chapters[AMONG], REFERENCE]
    blocks = []
    for name, paths in chapters.items():
        lines = "\n".join(f"/{path[:-3]}" for path in paths if path != "README.md")
        blocks.append(
            f"\n```{{toctree}}\n:hidden:\n:maxdepth: 1\n:caption: {name}\n\n{lines}\n```\n"
        )
    return "".join(blocks)


def generator() -> Path:
    """The generator's interpreter, in an environment that is made where there is none."""
    python = PLACE / "venv" / "bin" / "python"
    check = [python, "-c", "import furo, myst_parser, sphinx"]
    if not python.exists() or subprocess.run(check, stderr=subprocess.DEVNULL).returncode:
        tell("fetching the generator (once)")
        venv.create(PLACE / "venv", with_pip=True, clear=True)
        install(python, *GENERATOR)
    return python


def install(python: Path, *what: str) -> None:
    quiet_pip = [python, "-m", "pip", "-q", "--disable-pip-version-check"]
    subprocess.run([*quiet_pip, "install", *what], check=True)


def make(stage: Path, out: Path) -> None:
    settings = "".join(f"{name} = {value!r}\n" for name, value in SETTINGS.items())
    (stage / "conf.py").write_text(settings, encoding="utf-8")
    with (stage / "README.md").open("a", encoding="utf-8") as first:
        first.write(contents())
    python = generator()
    tell("building the package")
    kept = f"build-dir={PLACE / 'cmake'}"
    install(python, "--no-deps", "--force-reinstall", "-C", kept, str(ROOT / "python"))
    tell("making the pages")
    shutil.rmtree(out, ignore_errors=True)
    command = [python, "-m", "sphinx", "-q", "-W", "--keep-going", "-d", PLACE / "kept", stage, out]
    subprocess.run(command, check=True)
    (out / "index.html").write_text(FIRST_PAGE, encoding="utf-8")
    (out / MARK).touch()


def tell(what: str) -> None:
    if sys.stderr.isatty():
        print(f"make_site: {what}", file=sys.stderr)


def may_replace(out: Path) -> bool:
    return not out.exists() or not any(out.iterdir()) or (out / MARK).exists()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--stage-only", action="store_true")
    parser.add_argument("folder", nargs="?", type=Path, default=PLACE / "html", metavar="FOLDER")
    choices = parser.parse_args()
    out = choices.folder.resolve()
    if not may_replace(out):
        parser.error(
            f"{choices.folder} holds files that this command did not make; name another folder"
        )
    stage = PLACE / "pages"
    try:
        stage_into(stage)
        if not choices.stage_only:
            make(stage, out)
            print(out / "index.html")
    except Dead as why:
        print(f"make_site: {why}", file=sys.stderr)
        return 1
    except (OSError, subprocess.CalledProcessError) as why:
        print(f"make_site: the site was not made: {why}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
