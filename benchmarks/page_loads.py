"""Pages in Chromium as a slow phone: bytes with all that they load, and when their first row is seen."""

from __future__ import annotations

import re
import shutil
from typing import Any
from urllib.parse import urljoin

#: 390x844, a processor four times slower, 1.6 Mbit/s, 150 ms.
SLOWER, BYTES_PER_S, DELAY_MS = 4, 200_000, 150
#: What is looked for: what a person came to the page for.
SEEN = "main :is(tbody tr, form, article, section, li, p:not(:empty)):visible"


def first_rows(setup_url: str, run: str) -> dict[str, Any]:
    """Of each page that a menu or a run leads to.

    Args:
        setup_url: logs the owner in.
        run: one that has ended.
    """
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if program is None:
        raise SystemExit("there is no Chromium: apt-get install chromium-headless-shell")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            context = browser.new_context(viewport={"width": 390, "height": 844})
            page = context.new_page()
            page.goto(setup_url)
            if page.locator("form button").count():
                page.locator("form button").first.click()
            page.goto(urljoin(setup_url, "/"))
            paths = page.eval_on_selector_all(
                "nav a, header a", "all => all.map(a => a.getAttribute('href'))"
            )
            page.goto(urljoin(setup_url, f"/runs/{run}"))
            paths += page.eval_on_selector_all("main a", "all => all.map(a => a.getAttribute('href'))")
            wanted = dict.fromkeys(["/", f"/runs/{run}", "/device"])
            no_page = re.compile(r"/api/|.*\?|.*\.zip")
            wanted |= dict.fromkeys(
                each for each in paths if each and each.startswith("/") and not no_page.match(each)
            )
            page.close()
            found = {}
            for path in wanted:
                found[path.replace(run, "RUN")] = _load(context, urljoin(setup_url, path))
            return found
        finally:
            browser.close()


def _load(context: Any, url: str) -> dict[str, Any]:
    page = context.new_page()
    devtools = context.new_cdp_session(page)
    loaded: list[float] = []
    devtools.send("Network.enable")
    devtools.send("Network.setCacheDisabled", {"cacheDisabled": True})
    devtools.on("Network.loadingFinished", lambda event: loaded.append(event["encodedDataLength"]))
    devtools.send(
        "Network.emulateNetworkConditions",
        {
            "offline": False,
            "latency": DELAY_MS,
            "downloadThroughput": BYTES_PER_S,
            "uploadThroughput": BYTES_PER_S,
        },
    )
    devtools.send("Emulation.setCPUThrottlingRate", {"rate": SLOWER})
    page.goto(url, wait_until="commit")
    page.wait_for_selector(SEEN, timeout=60_000)
    seen_ms = page.evaluate("performance.now()")
    page.wait_for_load_state("load", timeout=60_000)
    page.wait_for_timeout(500)
    page.close()
    return {"bytes": round(sum(loaded)), "requests": len(loaded), "first_row_s": round(seen_ms / 1000, 2)}
