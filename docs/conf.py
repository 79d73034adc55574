"""Configuration of the documentation: ``sphinx-build -W docs site``."""

from __future__ import annotations

import os
import re
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parent))

import options_reference
from sphinx.domains.python import PythonDomain

import protofed

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "protofed"
author = "The protofed authors"
notice = "The protofed authors"
version = release = protofed.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
exclude_patterns = ["figures"]
html_theme = "furo"
html_title = f"protofed {release}"
html_static_path: list[str] = []

# Markdown.
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_execution_in_temp = True
nb_execution_excludepatterns = ["*three-machines*"]  # a slow test of protofed-flower runs it
nb_merge_streams = True

# The API, from docstrings.
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_class_signature = "separated"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_custom_sections = [("Class attributes", "Attributes")]
suppress_warnings = ["ref.python"]  # a short name that several modules have is linked to one of them
copybutton_prompt_text = "$ "


def _reachable(host: str) -> bool:
    try:
        with socket.create_connection((host, 443), timeout=2):
            return True
    except OSError:
        return False


# Links to other projects need their inventories; without a network the pages are built without these links.
if _reachable("docs.python.org"):
    intersphinx_mapping = {
        "python": ("https://docs.python.org/3", None),
        "torch": ("https://docs.pytorch.org/docs/stable", None),
        "numpy": ("https://numpy.org/doc/stable", None),
    }

# Notebooks run in processes of their own, on one thread, so that pages come out the same on every machine.
os.environ.setdefault("OMP_NUM_THREADS", "1")


class Names(PythonDomain):
    """Looks up every name once: most annotations name what is not ours, for which all objects are searched."""

    def find_obj(self, env: object, *name: Any) -> Any:
        """Return what a name may stand for."""
        found = self.__dict__.setdefault("found", {})
        if name not in found:
            found[name] = super().find_obj(env, *name)
        return found[name]


def setup(app: Sphinx) -> None:
    """Write the pages that are made from declarations before Sphinx looks for pages."""
    app.add_domain(Names, override=True)
    options_reference.write(Path(__file__).parent / "reference")
    app.connect("source-read", _link_to_the_repository)
    app.connect("autodoc-skip-member", _made_by_scikit_learn)
    app.connect("html-page-context", _one_tree_for_sources, priority=400)  # before the theme asks for it


REPOSITORY = os.environ.get("PROTOFED_REPOSITORY", "")
"""Address of the repository's files, e.g. https://HOST/OWNER/protofed/blob/main; "" copies linked pages."""


def _link_to_the_repository(app: Sphinx, page: str, source: list[str]) -> None:
    """Resolve links such as ``../papers/studies/scarce.md``, which lead out of the folder of the site's pages."""
    whole = rf"]({REPOSITORY}/\1\2)" if REPOSITORY else r"](path:../\1)"
    if "/" not in page:  # of others, in folders of the site, `..` is the site
        source[0] = re.sub(r"\]\(\.\./([^)#]+)(#[^)]*)?\)", whole, source[0])


def _made_by_scikit_learn(
    app: Sphinx, what: str, name: str, member: object, skip: bool, options: object
) -> bool | None:
    """Leave out the methods that scikit-learn makes for every estimator: they refer to its own glossary."""
    return True if re.fullmatch(r"set_\w+_request", name) else None


TREES: dict[int, str] = {}
"""The navigation beside a page of source code, by the page's depth, on which relative links depend."""


def _one_tree_for_sources(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Let pages of source code share their navigation: making it anew for each took half of the build."""
    if page.startswith("_modules/"):
        whole, depth = context["toctree"], page.count("/")

        def tree(**options: Any) -> str:
            if depth not in TREES:
                TREES[depth] = whole(**options)
            return TREES[depth]

        context["toctree"] = tree
