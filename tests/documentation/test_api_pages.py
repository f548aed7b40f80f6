"""The API reference: every public name once, each with an example that runs."""

import doctest
import re
import sys
from collections import Counter
from pathlib import Path

import griffe
import pytest

import r2r2

ROOT = Path(__file__).parents[2]
PAGES = {path.name: path.read_text() for path in (ROOT / "docs" / "api").glob("*.md")}
INDEX = PAGES.pop("index.md")
TORCH = [f"torch.{name}" for name in ("redundancy", "variance_hinge")]
TORCH += [f"torch.{name}" for name in ("self_prediction", "representation_loss")]


def documented(text):
    return re.findall(r"^::: r2r2\.(\S+)$", text, re.MULTILINE)


def test_every_public_name_is_on_one_page():
    torch = pytest.importorskip("r2r2.torch")
    assert sorted(x.removeprefix("torch.") for x in TORCH) == torch.__all__
    counts = Counter(name for text in PAGES.values() for name in documented(text))
    assert counts == Counter([*r2r2.__all__, *TORCH])


def test_the_overview_lists_the_names_of_each_page():
    rows = dict(re.findall(r"^\| \[[^]]*\]\((\w+\.md)\) \| (.*) \|$", INDEX, re.MULTILINE))
    assert set(rows) == set(PAGES)
    for page, row in rows.items():
        links = [f"[`{x}`]({page}#r2r2.{x})" for x in documented(PAGES[page])]
        assert row == ", ".join(links)


@pytest.fixture(scope="module")
def package():
    return griffe.load("r2r2", search_paths=[ROOT / "src"])


@pytest.mark.parametrize("name", [*r2r2.__all__, *TORCH])
def test_every_public_name_has_an_example_that_runs(package, name):
    """The examples of functions and classes run with those of all modules."""
    target = package[name]
    target = target.final_target if target.is_alias else target
    assert target.docstring, name
    text, module = target.docstring.value, target.module.path
    assert re.search(r"^ *>>> ", text, re.MULTILINE), name
    value = getattr(sys.modules["r2r2"], name, None)
    if target.is_attribute:  # doctest does not see the documentation of a constant
        __import__(module)
        names = dict(vars(sys.modules[module]))
        test = doctest.DocTestParser().get_doctest(text, names, name, module, 0)
        assert doctest.DocTestRunner().run(test) == doctest.TestResults(0, len(test.examples))
    elif value is not None:
        assert (value.__module__, ">>> " in value.__doc__) == (module, True)
