"""What pages show of a run and a team, in a browser: curves over other axes, a log, members."""

from __future__ import annotations

import contextlib
import json
import math
import sqlite3
import time

import pytest
from test_pages_rules import IS_ALL, PATIENCE_MS, opened, site  # noqa: F401 - fixtures

from trainmaster.service.users.access import Access
from trainmaster.service.users.accounts import Accounts

pytestmark = pytest.mark.timeout(600)
#: Of a run that is over: it reported each second, an epoch has ten steps.
STEPS = 60
RUN_ENDS = "UPDATE run SET state = 'DONE', reason = 'SUCCEEDED', ended_at = ?, closed_at = ? WHERE id = ?"
AXIS = "key => (data => data?.length ? [data[0], data.at(-1)] : null)(charts.chart(key).plot?.data[0])"
#: Controls that cross a line of their table.
CROSSING = """all => all.filter(each => each.checkVisibility()).filter(each => {
  const at = each.getBoundingClientRect(), row = each.closest("tr").getBoundingClientRect();
  return at.top < row.top - 0.5 || at.bottom > row.bottom + 0.5; }).map(each => each.outerHTML)"""


@pytest.fixture(scope="module")
def written(site):  # noqa: F811
    """A run with an attempt: its metrics, the looks at it, and 900 lines of log."""
    root = site.service.home.root
    with contextlib.closing(sqlite3.connect(root / "trainmaster.db")) as database, database:
        run, experiment = database.execute(
            "SELECT run.id, experiment.id FROM run JOIN experiment ON run_id = run.id"
            " WHERE experiment.reason = 'SUCCEEDED' ORDER BY run.id LIMIT 1"
        ).fetchone()
        now = time.time()
        database.execute(
            "INSERT INTO attempt (experiment_id, task, number, reason, message, opened_at, ended_at)"
            " VALUES (?, 0, 1, 'SUCCEEDED', '', ?, ?)",
            (experiment, now - 99, now),
        )
        database.execute("UPDATE task SET attempt = 1 WHERE experiment_id = ?", (experiment,))
    place = root / "runs" / run / "tasks" / "train" / "0" / "1"
    place.mkdir(parents=True)
    lines = [
        f'{{"step": {n:2}, "epoch": {n // 10}, "loss": {1 / n:.5f}, "accuracy": {n / 100:.3f}}}\n'
        for n in range(1, STEPS + 1)
    ]
    (place / "worker-0.metrics.jsonl").write_text("".join(lines))
    looks = [
        {"time": now - 98 + n, "member": "worker-0", "seconds": n, "cpu_seconds": 0, "peak_rss_bytes": 0,
         "reported_bytes": sum(map(len, lines[: n // 2]))}
        for n in range(1, 2 * STEPS + 1)
    ]  # fmt: skip
    (place / "samples.jsonl").write_text("".join(json.dumps(look) + "\n" for look in looks))
    said = [f"line {n}" for n in range(1, 901)]
    said[299] = "\x1b[31mERROR\x1b[0m: <b>disk</b> is full, see https://example.org/x"
    said[399] = "WARNING: slow"
    said[880] = "x" * 400
    (place / "worker-0.log").write_text("\n".join(said) + "\n")
    return run


@pytest.mark.browser
def test_curves_run_over_steps_time_and_epochs(browser, site, written):  # noqa: F811
    page = opened(browser, site)
    page.goto(f"{site.url}/runs/{written}")
    assert _axis(page, "loss", [1, STEPS])
    page.get_by_label("Curves run over").select_option("time")
    assert _axis(page, "loss", [0, 2 * STEPS - 2]), "a report each two seconds"
    assert "@ 1 min 58 s" in page.locator("[data-key=loss] h3").inner_text()
    page.reload()
    assert _axis(page, "accuracy", [0, 2 * STEPS - 2]), "it stays"
    page.get_by_label("Curves run over").select_option("epoch")
    assert _axis(page, "loss", [0, STEPS // 10])
    page.context.close()


@pytest.mark.browser
def test_a_page_that_came_before_the_first_report_was_known_draws_all_of_them(browser, site, written):  # noqa: F811
    page = opened(browser, site)
    file = site.service.home.root / "trainmaster.db"
    its = "experiment_id = (SELECT id FROM experiment WHERE run_id = ?)"
    with contextlib.closing(sqlite3.connect(file)) as database, database:
        (metrics,) = database.execute(f"SELECT metrics FROM task WHERE {its}", (written,)).fetchone()
        database.execute(f"UPDATE task SET metrics = '{{}}' WHERE {its}", (written,))
    try:
        answer = page.goto(f"{site.url}/runs/{written}")
        assert 'class="chart"' not in answer.text(), (
            "the page itself: its stream may already have brought some"
        )
        page.evaluate("step => take({experiment: 'train', task: 0, points: [{step, loss: 1 / step}]})", STEPS)
        page.locator(".chart canvas").first.wait_for()
        assert _axis(page, "loss", [1, STEPS])
    finally:  # for what comes next, another try as well
        with contextlib.closing(sqlite3.connect(file)) as database, database:
            database.execute(f"UPDATE task SET metrics = ? WHERE {its}", (metrics, written))
    page.context.close()


def _axis(page, key, wanted):
    """Whether a chart comes to show what lies between two places."""
    return _comes(page, AXIS, key, lambda found: found and [round(each) for each in found] == wanted)


def _comes(page, script, wanted=None, is_it=bool):
    """Whether what a script finds comes to be right."""
    until = time.monotonic() + PATIENCE_MS / 1000
    while time.monotonic() < until:
        if is_it(page.evaluate(script, wanted)):
            return True
        page.wait_for_timeout(50)
    return False


@pytest.mark.browser
def test_a_log_has_numbers_that_lead_to_lines_levels_marks_and_links(browser, site, written):  # noqa: F811
    page = opened(browser, site)
    page.goto(f"{site.url}/runs/{written}")
    page.locator("#log", has_text="line 900").wait_for()
    page.get_by_label("Find in all its logs").fill("DISK")
    page.get_by_label("Find in all its logs").press("Enter")
    row = page.locator(".log p")
    assert row.inner_text().endswith("ERROR: <b>disk</b> is full, see https://example.org/x")
    assert row.get_attribute("class") == "l-error"
    assert row.locator("mark").inner_text() == "disk"
    assert row.locator(".l-bad").inner_text() == "ERROR"
    assert row.get_by_role("link", name="https://example.org/x").count() == 1
    row.get_by_role("link", name="Line 300").click()
    page.wait_for_url("**line=300#L300")
    assert page.locator("#L300:target").is_visible()
    assert page.locator(".log p").first.get_attribute("id") == "L280"
    page.get_by_role("link", name="Later").click()
    page.wait_for_url("**line=680")
    page.get_by_label("Level").select_option("warning")
    page.get_by_role("button", name="Show").click()
    page.wait_for_url("**level=warning*")
    assert [each.split()[1] for each in page.locator(".log p").all_inner_texts()] == ["ERROR:", "WARNING:"]
    page.goto(f"{site.url}/runs/{written}/logs")
    assert "900 lines" in page.locator(".log-bar").inner_text()
    assert page.locator("#L900").is_visible(), "its end"
    room = page.locator(".log").evaluate("log => [log.scrollWidth, log.clientWidth]")
    assert room[0] == room[1], "what has no space is broken, and not cut"
    with page.expect_download() as download:
        page.get_by_role("link", name="Download the whole log").click()
    assert download.value.suggested_filename == f"{written}.log"
    page.context.close()


@pytest.mark.browser
def test_marked_runs_have_a_bar_with_what_can_be_done_at_once(browser, site):  # noqa: F811
    page = opened(browser, site, "phone")
    page.goto(f"{site.url}/runs?state=SUCCEEDED")
    boxes = page.locator("#rows label")
    for number in range(2):
        boxes.nth(number).click()
    assert page.locator("#marked").inner_text() == "2 marked"
    page.get_by_role("button", name="Unmark").wait_for()
    seen = page.locator("#bar > button").evaluate_all(
        "all => all.map(each => each.getBoundingClientRect().height)"
    )
    assert max(seen) < 60, "no word is broken"
    page.get_by_role("button", name="Delete…").click()
    page.wait_for_url("**/remove?run=**")
    page.go_back()
    page.locator("#marked", has_text="2 marked").wait_for()
    page.set_viewport_size({"width": 1440, "height": 900})
    page.get_by_label("A label for the marked runs").fill("look=again")
    page.get_by_role("button", name="Again…").click()
    page.get_by_role("heading", name="Run 2 runs again?").wait_for()
    page.context.close()


@pytest.mark.browser
def test_a_view_is_saved_found_and_forgotten(browser, site):  # noqa: F811
    page = opened(browser, site)
    page.goto(f"{site.url}/runs?where=loss+%3C+0.3&sort=cost&column=metric%3Aloss")
    page.locator("summary", has_text="Saved").click()
    page.get_by_label("Name of this view").fill("cheap")
    page.get_by_role("button", name="Save").click()
    page.wait_for_load_state()
    page.goto(f"{site.url}/runs")
    page.locator("summary", has_text="Saved").click()
    page.get_by_role("link", name="cheap").click()
    page.wait_for_url("**/runs?where=loss+%3C+0.3&sort=cost&column=metric%3Aloss")
    page.locator("summary", has_text="Saved").click()
    page.get_by_role("button", name="Forget the view cheap").click()
    page.get_by_role("button", name="Yes").click()
    page.locator("summary", has_text="Saved").click()
    page.get_by_text("under a name of yours").wait_for()
    page.context.close()


def of_columns(points, columns):
    """The least and the greatest of each column of pixels, of those with a point."""
    first, last = points[0][0], points[-1][0]
    found = {}
    for x, y in points:
        at = min(columns - 1, int((x - first) / (last - first) * columns))
        low, high = found.get(at, (y, y))
        found[at] = min(low, y), max(high, y)
    return found


DRAWN = """() => {
  const {plot, series} = charts.chart("loss"), [{xs, ys}] = series.values();
  return [xs.map((x, i) => [x, ys[i]]), Math.round(plot.bbox.width / devicePixelRatio), charts.columns()];
}"""


@pytest.mark.browser
@pytest.mark.parametrize("size", ["phone", *["desk"] * IS_ALL])
def test_a_long_curve_is_true_in_every_column_of_pixels(browser, site, size):  # noqa: F811
    """R17, of 10,000 reports, or of a million: at the first look, and when it has grown while it is seen."""
    page = opened(browser, site, size)
    page.goto(f"{site.url}/runs/long")
    page.locator(".chart canvas").first.wait_for()
    page.wait_for_function("() => charts.chart('loss').series.size")
    drawn, width, columns = page.evaluate(DRAWN)
    assert width == columns
    count = 1_000_000 if IS_ALL else 10_000
    all_ = [(step, 1 / step + 0.01 * math.sin(step * 7.1)) for step in range(1, count + 1)]
    mine, its = of_columns(drawn, columns), of_columns(all_, columns)
    least, greatest = min(y for _, y in all_), max(y for _, y in all_)
    assert mine.keys() == its.keys()
    within = 0.01 * (greatest - least)
    assert all(mine[at] == pytest.approx(its[at], abs=within) for at in its)
    said = page.locator("[data-key=loss] h3").inner_text()
    assert f"{float(f'{all_[-1][1]:.4g}'):g} · best {float(f'{least:.4g}'):g}" in said
    # What it gets while it is seen is drawn as it comes, and is thinned by the server when it is too long.
    live = [{"step": count + at, "loss": 0.5} for at in range(1, 9001)]
    with page.expect_request("**/metrics?*"):
        page.evaluate("points => { take({experiment: 'train', task: 0, points}); charts.draw(); }", live)
        assert page.evaluate("charts.length('loss')") > 9000
    page.wait_for_function("() => charts.length('loss') < 4000")
    page.context.close()


@pytest.mark.browser
def test_what_has_left_the_filter_leaves_the_list(browser, site):  # noqa: F811
    page = opened(browser, site)
    page.goto(f"{site.url}/runs?state=RUNNING")
    row = page.locator("#rows tr").last
    run = row.get_attribute("data-run")
    with contextlib.closing(sqlite3.connect(site.service.home.root / "trainmaster.db")) as database, database:
        database.execute(RUN_ENDS, (time.time(), time.time(), run))
    page.evaluate("look()")
    page.locator(f"#rows tr[data-run='{run}']").wait_for(state="detached")
    page.context.close()


@pytest.mark.browser
def test_a_log_is_followed_until_the_run_is_over(browser, site):  # noqa: F811
    page = opened(browser, site)
    page.goto(f"{site.url}/runs?state=RUNNING")
    run = page.locator("#rows tr").nth(1).get_attribute("data-run")
    page.goto(f"{site.url}/runs/{run}")
    assert (page.locator("#following").inner_text(), page.locator("#follow").inner_text()) == (
        "following",
        "Pause",
    )
    page.locator("#follow").click()
    assert _comes(page, "open.last !== undefined")  # it has seen the run that is not over
    with contextlib.closing(sqlite3.connect(site.service.home.root / "trainmaster.db")) as database, database:
        database.execute(RUN_ENDS, (time.time(), time.time(), run))
    assert _comes(page, "of.over === '1'")  # as its stream says
    page.locator("#follow", has_text="Follow").click()  # paused: what it has said since is still to be had
    page.locator("#follow").wait_for(state="detached")
    assert page.locator("#following").count() == 0
    page.context.close()


@pytest.mark.browser
def test_the_tasks_of_a_run_that_goes_on_are_looked_at_again_until_it_is_over(browser, site):  # noqa: F811
    page = opened(browser, site)
    page.goto(f"{site.url}/runs?state=RUNNING")
    run = page.locator("#rows tr").nth(2).get_attribute("data-run")
    page.goto(f"{site.url}/runs/{run}/tasks")
    state, its = page.locator("table.tasks .state"), "(SELECT id FROM experiment WHERE run_id = ?)"
    assert state.inner_text() == "running"
    with contextlib.closing(sqlite3.connect(site.service.home.root / "trainmaster.db")) as database, database:
        database.execute(
            f"UPDATE task SET state = 'DONE', reason = 'SUCCEEDED' WHERE experiment_id = {its}", (run,)
        )
        database.execute(RUN_ENDS, (time.time(), time.time(), run))
    page.locator("table.tasks .state", has_text="succeeded").wait_for()
    assert not page.locator("[data-again]").count(), "it is over"
    page.context.close()


@pytest.mark.browser
def test_a_task_is_cancelled_in_its_row_by_a_key_on_a_phone(browser, site):  # noqa: F811
    page = opened(browser, site, "phone")
    page.goto(f"{site.url}/runs?state=RUNNING")
    run = page.locator("#rows tr").last.get_attribute("data-run")
    page.goto(f"{site.url}/runs/{run}")
    assert not page.get_by_role("button", name="Cancel").count(), "its only task: the run is ended"
    with contextlib.closing(sqlite3.connect(site.service.home.root / "trainmaster.db")) as database, database:
        database.execute("UPDATE experiment SET tasks_total = 2 WHERE run_id = ?", (run,))
        database.execute(
            "INSERT INTO task (experiment_id, number, state, message, parameters, metrics)"
            " SELECT id, 1, 'WAITING', '', '{}', '{}' FROM experiment WHERE run_id = ?", (run,)
        )  # fmt: skip
    page.goto(f"{site.url}/runs/{run}/tasks")
    button = page.get_by_role("button", name="Cancel train/1")
    at = button.bounding_box()
    assert (at["x"] + at["width"] < page.viewport_size["width"], at["height"]) == (True, 44)
    button.press("Enter")
    page.keyboard.press("Escape")
    assert not site.service.database.cancelled_tasks(run)
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Yes: cancel train/1").press("Enter")
    page.locator("[data-trial='train/1']", has_text="will not begin").wait_for()
    assert page.url.endswith("/tasks")
    assert site.service.database.cancelled_tasks(run) == {"train/1": "ann"}
    assert page.get_by_role("button", name="Cancel").all_inner_texts() == ["Cancel"], "train/0 goes on"
    page.context.close()


FOCUSED = "document.activeElement.textContent.trim()"
PART = """<div id="part" hx-get="/quotes/one" hx-trigger="every 300ms" hx-swap="outerHTML" data-says="%s">
<form><button>Cancel it</button></form></div>"""


@pytest.mark.browser
def test_the_keyboard_stays_where_it_was_in_a_part_that_comes_again(browser, site):  # noqa: F811
    page = opened(browser, site)
    page.goto(f"{site.url}/runs?state=RUNNING")
    page.goto(f"{site.url}/runs/{page.locator('#rows tr').nth(0).get_attribute('data-run')}")

    def changed(route):
        if "hx-request" not in route.request.headers:
            return route.continue_()
        found = route.fetch()
        return route.fulfill(response=found, body=found.text().replace(">End it<", "> End it<"))

    page.route("**/runs/*", changed)
    page.get_by_role("button", name="End it").focus()
    page.evaluate("refresh()")
    assert _comes(page, "sent.has('actions')")
    assert page.evaluate(FOCUSED) == "End it"
    page.unroute_all()

    whole = page.request.get(f"{site.url}/examples").text()
    head, _, rest = whole.partition("</head>")
    script = '<script src="/static/htmx-2.0.8.min.js" defer></script></head>'
    before, _, behind = rest.partition("</main>")
    said = '<p id="said" role="status"></p>' + PART % "It is being made."
    answers = [head + script + before + said + "</main>" + behind]

    def answered(route):
        body = answers.pop() if answers else PART % "The quote is ready."
        route.fulfill(body=body, content_type="text/html")

    page.route("**/quotes/one", answered)
    page.goto(f"{site.url}/quotes/one")
    page.get_by_role("button", name="Cancel it").focus()
    page.locator("#said", has_text="The quote is ready.").wait_for()
    page.wait_for_timeout(700)
    assert page.evaluate(FOCUSED) == "Cancel it", "it can be pressed, however often the part has come"
    page.context.close()


@pytest.mark.crossings  # `make pages` has it, too
@pytest.mark.browser
def test_a_phase_of_an_open_page_goes_on_without_an_event(browser, site):  # noqa: F811
    page = opened(browser, site)
    page.goto(f"{site.url}/runs?state=RUNNING")
    run = page.locator("#rows tr").nth(2).get_attribute("data-run")
    course = {"now": "setup", "since": 0.0, "took": {}, "expected": {}}
    site.service.database.put_forecast(run, json.dumps({"courses": {"train": course}, "ends": {}}))
    page.goto(f"{site.url}/runs/{run}")
    now = page.locator(".legend.phases", has_text="now setup")
    before = now.inner_text()
    page.wait_for_function("was => document.querySelector('.legend.phases').innerText !== was", arg=before)
    page.context.close()


@pytest.mark.crossings  # `make pages` has it, too
@pytest.mark.browser
def test_hovering_curves_and_scrolling_a_log_leave_time_for_60_frames(browser, site):  # noqa: F811
    """Time of the page's processor, so that a busy machine is as good as a quiet one."""
    page, took = opened(browser, site), {}
    devtools = page.context.new_cdp_session(page)
    devtools.send("Performance.enable", {"timeDomain": "threadTicks"})

    def frames(name, act):
        before = work(devtools)
        for number in range(60):
            act(number)
            page.evaluate("() => new Promise(requestAnimationFrame)")
        took[name] = 1000 * (work(devtools) - before) / 60

    page.goto(f"{site.url}/runs/wide")
    page.locator(".chart canvas").first.wait_for()
    at = page.locator(".chart canvas").first.bounding_box()
    frames("hover", lambda number: page.mouse.move(at["x"] + 60 + 4 * number, at["y"] + 60))
    frames("scroll a page", lambda _: page.mouse.wheel(0, 40))
    page.goto(f"{site.url}/runs/wide/logs")
    page.locator(".log").hover()
    frames("scroll a log", lambda _: page.mouse.wheel(0, -200))
    page.context.close()
    assert not {name: each for name, each in took.items() if each > 16}, took


def work(devtools):
    """Seconds of work of a page's main thread."""
    found = devtools.send("Performance.getMetrics")["metrics"]
    return next(each["value"] for each in found if each["name"] == "TaskDuration")


@pytest.mark.browser
def test_all_tasks_are_drawn_and_the_best_are_in_colour(browser, site):  # noqa: F811
    page = opened(browser, site)
    page.goto(f"{site.url}/runs/tasks")
    page.locator(".legend", has_text="200 of 200 are drawn, the best in colour").wait_for()
    page.context.close()


@pytest.mark.browser
def test_a_run_of_fifty_metrics_begins_with_its_loss(browser, site):  # noqa: F811
    page = opened(browser, site, "phone")
    page.goto(f"{site.url}/runs/wide")
    page.locator(".chart canvas").first.wait_for()
    keys = page.locator("[data-key]").evaluate_all("all => all.map(each => each.dataset.key)")
    assert keys[:2] == ["loss", "accuracy"]
    assert page.evaluate("document.documentElement.scrollHeight") < 4000, "groups of the others are folded"
    page.context.close()


#: Where the cells of each row end.
ENDS = "all => all.map(row => new Set([...row.cells].map(each => each.getBoundingClientRect().bottom)).size)"


@pytest.mark.browser
def test_lines_of_a_row_meet_and_offers_fit_a_phone(browser, site):  # noqa: F811
    accounts, access = Accounts(site.service.database), Access(site.service.database)
    access.make_team("vision", None)
    for name in ("ben", "a-name-that-is-long-enough-to-take-two-lines-" + "x" * 17):
        accounts.create_user(name)
        accounts.set_member("vision", name, "manager")
    page = opened(browser, site)
    page.goto(f"{site.url}/team?team=vision")
    rows = page.locator("table tr").evaluate_all(ENDS)
    assert len(rows) > 3
    assert set(rows) == {1}
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{site.url}/offers")
    assert page.locator("tbody tr").count() == 25
    assert page.evaluate("document.documentElement.scrollHeight") < 3500
    page.context.close()


@pytest.mark.browser
def test_one_field_keeps_machines_warm_and_is_kept_itself(browser, site):  # noqa: F811
    page = opened(browser, site, "phone")
    page.goto(site.url + "/new")
    keep = page.get_by_label("Keep rented machines warm for the next run")
    keep.fill("soon")
    page.get_by_role("button", name="Run it").click()
    page.get_by_text("'soon' is no duration").wait_for()
    keep.fill("30m")
    page.reload()
    assert keep.input_value() == "30m"
    with page.expect_request("**/new/estimate") as asked:
        keep.fill("45m")
        keep.blur()
    assert "keep=45m" in asked.value.post_data
    page.context.close()


@pytest.mark.browser
def test_what_changes_a_member_lies_within_the_lines_of_its_row(browser, site):  # noqa: F811
    page = opened(browser, site)
    own = {"headers": {"Authorization": f"Bearer {site.token}"}}
    api = site.url + "/api/v1/teams"
    assert page.request.put(api, data={"team": "vision"}, **own).ok
    assert page.request.post(site.url + "/api/v1/users", data={"name": "bob"}, **own).ok
    assert page.request.put(f"{api}/vision/members/bob", data={"role": "member"}, **own).ok
    page.goto(site.url + "/team?team=vision")
    page.get_by_role("button", name="Remove bob").wait_for()
    assert not page.eval_on_selector_all("main tr button, main tr select", CROSSING)
    page.context.close()


@pytest.mark.browser
def test_on_a_phone_no_field_lies_below_the_buttons_and_parameters_stand_beside_a_reason(browser, site):  # noqa: F811
    page = opened(browser, site, "phone")
    page.goto(site.url + "/new")
    page.evaluate(
        "document.querySelector('#about').textContent = 'It takes a while, and costs much. '.repeat(9)"
    )
    page.evaluate("window.scrollTo(0, 1e6)")
    field = page.locator(".send input:visible").last.bounding_box()
    assert field["y"] + field["height"] <= page.locator(".send .action").bounding_box()["y"]

    page.goto(site.url + "/runs/tasks/tasks")
    reason = '<span class="dim" title="x">exit code 1 (ValueError: diverged with a rate of 0.3)</span>'
    page.locator(".tasks tbody tr").first.locator("td").nth(1).evaluate(
        "(cell, reason) => cell.insertAdjacentHTML('beforeend', reason)", reason
    )
    parameter = page.locator(".tasks tbody tr").first.locator("td.n").nth(1).bounding_box()
    assert parameter["x"] < page.viewport_size["width"]
    page.context.close()


@pytest.mark.browser
def test_a_run_that_was_deleted_and_a_session_that_is_over_are_told_on_an_open_page(browser, site):  # noqa: F811
    site.large("goes", 1, 20, ["loss"])
    page = opened(browser, site)
    page.goto(f"{site.url}/runs/goes")
    page.locator(".chart canvas").first.wait_for()
    gone = page.request.delete(
        f"{site.url}/api/v1/runs/goes", headers={"Authorization": f"Bearer {site.token}"}
    )
    assert gone.ok, gone.text()
    page.wait_for_function("() => source === null")
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.get_by_text("This run is not there any more: it was deleted.").wait_for()
    page.goto(f"{site.url}/runs?state=RUNNING")
    page.locator("#rows .run a").first.click()
    page.locator("#part").wait_for()
    cookies = page.context.cookies()
    page.context.clear_cookies()
    page.evaluate("() => { close(); open(); }")
    page.get_by_text("You are logged out: load this page again, or log in in another tab.").wait_for()
    page.context.add_cookies(cookies)
    page.wait_for_function("() => document.getElementById('link').textContent === ''")
    page.context.close()


@pytest.mark.browser
def test_what_tasks_use_is_drawn_from_zero_in_units_that_fit(browser, site, written):  # noqa: F811
    page = opened(browser, site, "phone")
    page.goto(f"{site.url}/runs/{written}/machines")
    page.locator(".chart canvas").first.wait_for()
    assert page.evaluate("() => LOOK.words('Memory', 12.6e6)") == "13 MB"
    assert set(page.evaluate("() => [...members.charts.values()].map(each => each.plot.scales.y.min)")) == {0}
    page.evaluate("() => { for (const at of [1, 9]) members.add('Memory', 'x', at, 0); members.draw(); }")
    assert page.evaluate("() => members.chart('Memory').plot.scales.y.max") >= 1000, "no 1 B, 1 B, 0 B"
    page.context.close()


@pytest.mark.browser
def test_the_best_of_more_tasks_than_are_drawn_is_drawn_and_compared(browser, site):  # noqa: F811
    site.large("crowd", 260, 2, ["loss"])
    home, best = site.service.home, 134
    home.attempt("crowd", "train", best, 1).metrics("worker-0").write_text('{"step": 2, "loss": 0.01}\n')
    with contextlib.closing(sqlite3.connect(home.root / "trainmaster.db")) as database, database:
        database.execute(
            "UPDATE task SET metrics = ? WHERE number = ?"
            " AND experiment_id = (SELECT id FROM experiment WHERE run_id = 'crowd')",
            ('{"step": 2, "loss": 0.01}', best),
        )
    page = opened(browser, site)
    page.goto(f"{site.url}/runs/crowd")
    page.locator(".chart[data-key=loss] h3", has_text=f"best 0.01 train/{best}").wait_for()
    page.goto(f"{site.url}/compare?run=crowd")
    best_task = page.get_by_role("region", name="Best task of each run")
    assert f"train/{best}" in best_task.inner_text()
    page.context.close()


@pytest.mark.browser
def test_what_was_written_on_a_page_is_there_after_a_log_in_that_came_between(browser, site, written):  # noqa: F811
    page = opened(browser, site)
    page.goto(f"{site.url}/runs/{written}/again")
    page.get_by_label("Recipe").fill("name: mine # a long thought\n")
    page.context.clear_cookies()
    page.get_by_role("button", name="Run it").click()
    page.get_by_label("Token").fill(site.token)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url(f"**/runs/{written}/again")
    assert page.get_by_label("Recipe").input_value() == "name: mine # a long thought\n"
    page.goto(f"{site.url}/runs/{written}")  # he goes elsewhere, and is logged out later
    page.context.clear_cookies()
    page.goto(f"{site.url}/runs/{written}/again")
    page.get_by_label("Token").fill(site.token)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url(f"**/runs/{written}/again")
    assert "a long thought" not in page.get_by_label("Recipe").input_value()
    page.context.close()


@pytest.mark.browser
def test_a_log_that_grows_faster_than_it_is_read_is_followed_at_its_end(browser, site):  # noqa: F811
    site.large("loud", 1, 2, ["loss"], 500)
    page = opened(browser, site)
    page.goto(f"{site.url}/runs/loud/logs")
    page.locator("#L500").wait_for()
    with site.service.home.attempt("loud", "train", 0, 1).log("worker-0").open("a") as file:
        file.writelines("more\n" for _ in range(100_000))
    page.evaluate("write()")
    page.locator("#L100500").wait_for(timeout=30_000)  # all of them, 400 at a time, would take 100 s
    page.context.close()
