"""What all pages promise, in a browser, on 120 runs of each state: sizes, places, keys, states, colours.

`TRAINMASTER_PAGES=all` (`make pages`) looks at every page in both sizes, light and dark, with 5,000 runs.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
from learning import needs
from seeded_site import LONG, SeededSite

CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium")
IS_ALL = os.environ.get("TRAINMASTER_PAGES") == "all"
SIZES = {"desk": (1440, 900), "phone": (390, 844)}
LOOKS = [(size, scheme) for size in SIZES for scheme in ("light", "dark")]
PATHS = (
    ("/", "/runs", "/models", "/notifications", "/team")
    + ("/registry", "/workflows", "/services", "/examples", "/volumes", "/storage", "/clusters", "/offers")
    * IS_ALL
    + ("/recommend", "/apps", "/cost", "/audit", "/new", f"/runs/{LONG}", "/nothing-here") * IS_ALL
)
PAGES = Path(__file__).parents[2] / "src" / "trainmaster" / "web" / "static"
#: Sizes of all texts that are seen; what is wider than the page; lists with the place of each row.
TYPE = """() => [...new Set([...document.querySelectorAll("body *")].filter(each => each.checkVisibility()
  && [...each.childNodes].some(node => node.nodeType === 3 && node.textContent.trim()))
  .map(each => getComputedStyle(each).fontSize))]"""
ROWS = "all => all.map(row => row.getBoundingClientRect()).map(at => [at.top, at.bottom, at.height])"
TARGETS = """all => all.filter(each => each.checkVisibility()).map(each => [each.outerHTML.slice(0, 80),
  each.getBoundingClientRect().height]).filter(([, height]) => height < 23.5)"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("fastapi", reason="the extra `server` is not installed")
    found = SeededSite(tmp_path_factory.mktemp("pages"), 5000 if IS_ALL else 120)
    yield found
    found.stop()


@pytest.fixture(scope="module")
def browser():
    needs("playwright", "axe_playwright_python")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium: apt-get install chromium-headless-shell")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


def opened(browser, site, size="desk", scheme="light", **options):
    """A page of someone who is logged in."""
    width, height = SIZES[size]
    viewport = {"width": width, "height": height}
    context = browser.new_context(
        viewport=viewport, color_scheme=scheme, has_touch=size == "phone", **options
    )
    page = context.new_page()
    page.goto(site.url + "/login")
    page.get_by_label("Token").fill(site.token)
    page.get_by_role("button", name="Log in").click()
    page.locator(".account").wait_for()
    return page


@pytest.mark.timeout(900)
@pytest.mark.browser
@pytest.mark.parametrize(("size", "scheme"), LOOKS if IS_ALL else [("desk", "light"), ("phone", "dark")])
def test_pages_have_five_sizes_of_type_targets_to_hit_and_nothing_that_axe_finds(browser, site, size, scheme):
    from axe_playwright_python.sync_playwright import Axe

    page = opened(browser, site, size, scheme)
    wrong = {}
    for path in PATHS:
        page.goto(site.url + path)
        sizes = set(page.evaluate(TYPE)) - {f"{each}px" for each in (12, 13, 14, 16, 20, 24)}
        found = Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]
        rules = [
            (each["id"], [node["html"][:120] for node in each["nodes"]][:3])
            for each in found
            if {"wcag2a", "wcag2aa", "wcag21a", "wcag21aa"} & {*each["tags"]}
            or each["id"] == "landmark-unique"
        ]
        small = page.eval_on_selector_all("main button, main .button, header summary, header a", TARGETS)
        wide = []
        for width, zoom in ((SIZES[size][0], "100%"), (320, "100%"), (SIZES[size][0], "200%")):
            page.set_viewport_size({"width": width, "height": SIZES[size][1]})
            page.evaluate("size => { document.documentElement.style.fontSize = size }", zoom)
            if (is_wide := page.evaluate("document.documentElement.scrollWidth")) > width:
                wide.append((width, zoom, is_wide))
        page.set_viewport_size({"width": SIZES[size][0], "height": SIZES[size][1]})
        if sizes or rules or small or wide:
            wrong[path] = sizes, rules, small, wide
    page.context.close()
    assert not wrong


@pytest.mark.browser
@pytest.mark.parametrize(("size", "top", "least", "height"), [("desk", 120, 22, 33), ("phone", 112, 11, 64)])
def test_the_first_screen_of_runs_is_runs(browser, site, size, top, least, height):
    page = opened(browser, site, size)
    page.goto(site.url + "/runs")
    rows = page.eval_on_selector_all("#rows tr", ROWS)
    assert rows[0][0] <= top
    low = page.locator(".action").bounding_box()["y"] if size == "phone" else SIZES[size][1]
    assert sum(bottom <= low for _, bottom, _ in rows) >= least
    assert max(each for _, _, each in rows) <= height
    assert page.locator("header").bounding_box()["height"] <= 49
    page.goto(site.url + "/")
    heads = page.locator("h2").all_inner_texts()
    assert [head.split()[0] for head in heads[:4]] == ["Needs", "Running", "Waiting", "Since"]
    page.context.close()


@pytest.mark.browser
def test_runs_by_keyboard_with_marks_that_stay_and_all_in_the_address(browser, site):
    page = opened(browser, site)
    page.keyboard.press("g")
    page.keyboard.press("r")
    page.wait_for_url("**/runs")
    for key in ("j", "j", "x", "j", "x"):
        page.keyboard.press(key)
    assert page.locator("#marked").inner_text() == "2 marked"
    ids = page.locator("#rows tr.marked").evaluate_all("all => all.map(row => row.dataset.run)")
    page.get_by_role("link", name="2", exact=True).click()
    page.wait_for_url("**page=2")
    assert page.locator("#marked").inner_text() == "2 marked", "on another page, too"
    page.reload()
    page.keyboard.press("c")
    page.wait_for_url("**/compare?*")
    assert [f"run={run}" in page.url for run in ids] == [True, True]
    page.go_back()
    page.keyboard.press("Escape")
    assert "Mark runs" in page.locator("#marked").inner_text()
    page.keyboard.press("/")
    page.keyboard.type("loss < 0.02")
    page.keyboard.press("Enter")
    page.wait_for_url("**where=loss*")
    page.get_by_role("link", name="loss").click()
    page.wait_for_url("**sort=metric*")
    assert "where=loss" in page.url, "what was looked for stays"
    shown = [float(each) for each in page.locator("#rows .v[data-label=loss]").all_inner_texts()]
    assert shown == sorted(shown)
    page.get_by_text("Columns").click()
    page.get_by_label("lr").check()
    page.locator("details[open]").get_by_role("button", name="Show").click()
    page.wait_for_url("**column=param*")
    assert page.locator("th", has_text="lr").count() == 1
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**/runs/digits-*")
    assert page.title().startswith("✓ ")
    page.get_by_text("Menu", exact=True).click()
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.textContent") == "Menu"
    page.context.close()


def test_colours_are_tokens():
    for file in (PAGES / "app.css", PAGES / "new.css"):
        rules = re.sub(r":root \{[^}]*\}", "", file.read_text())
        assert not re.findall(r"#[0-9a-fA-F]{3,8}\b(?![^{]*\{)", rules), file.name
