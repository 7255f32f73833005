"""The pages in a real browser: Chromium, as a desktop and as a phone, in the light and in the dark, and on paper.

Needs Chromium and its driver (Debian: chromium, chromium-driver) and axe-core from the npm registry: the file that the
environment variable AXE_CORE names, or else ``npm pack axe-core``.
"""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import recorded
from selenium import webdriver
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.select import Select
from selenium.webdriver.support.wait import WebDriverWait

from compare.reporting import html, page_model

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="Chromium and its driver are not installed")
DESKTOP, PHONE = 1280, 390
HOSTILE = "<script>alert(1)</script>"
AXE = "axe-core@4"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(DRIVER)))
    driver.set_script_timeout(60)
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """axe-core's source."""
    if "AXE_CORE" in os.environ:
        return Path(os.environ["AXE_CORE"]).read_text(encoding="utf-8")
    folder = tmp_path_factory.mktemp("axe")
    try:
        subprocess.run(["npm", "pack", "--silent", AXE], cwd=folder, check=True, capture_output=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"axe-core cannot be fetched: {error}")
    (archive,) = folder.glob("*.tgz")
    with tarfile.open(archive) as file:
        member = file.extractfile("package/axe.min.js")
        assert member is not None
        return member.read().decode()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of each kind, one whose names are hostile, and the pages over them."""
    folder = tmp_path_factory.mktemp("reports")
    made = [make(folder / kind) for kind, make in recorded.KINDS.items()]
    hostile = folder / "hostile"
    recorded.record(hostile, "fit")
    recorded.record(hostile, HOSTILE, off_from=2)
    recorded.finish(hostile, ("fit", HOSTILE), causes=["loss-summed"], title=HOSTILE, notes=[HOSTILE])
    long = folder / "long"  # of two epochs, with steps to zoom to
    recorded.record(long, "fit", epochs=2, steps=400)
    recorded.record(long, "mine", epochs=2, steps=400, off_from=500)
    recorded.finish(long, ("fit", "mine"), started="2026-02-03T04:05:06+00:00")
    curves = folder / "alone" / "curves"  # not in the list; of eight epochs, each with a loss of one by its number
    for trainer in ("fit", "mine"):
        recorded.record(curves, trainer, epochs=8)
    recorded.finish(curves, ("fit", "mine"))
    html.write_index(folder)
    html.write_together([*made, hostile, long], folder / "side-by-side.html")
    return folder


OTHERS = ["hostile/report.html", "long/report.html", "alone/curves/report.html", "index.html", "side-by-side.html"]
PAGES = [*(f"{kind}/report.html" for kind in recorded.KINDS), *OTHERS]


def show(browser: Any, page: Path, width: int, *, dark: bool = False) -> None:
    """Open a page on a screen of that width, in CSS pixels."""
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    screen = {"width": width, "height": 844, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    browser.get_log("browser")
    browser.get(page.as_uri())


@pytest.fixture(params=PAGES)
def page(request: pytest.FixtureRequest, runs: Path) -> Path:
    return runs / str(request.param)


@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_a_page_opens_whole_and_without_complaint(browser: Any, page: Path, width: int) -> None:
    show(browser, page, width)
    assert browser.get_log("browser") == []
    across = browser.execute_script("return [document.documentElement.scrollWidth, window.innerWidth]")
    assert across[0] <= across[1] == width, "no horizontal scrolling"
    broken = "return [...document.images].filter(each => !each.complete || !each.naturalWidth).length"
    assert browser.execute_script(broken) == 0
    flat = """return [...document.querySelectorAll("figure:not(.strip) .plot > svg")].filter(each => {
        const box = each.getBoundingClientRect(); return box.width < 150 || box.height < 100; }).length"""
    assert browser.execute_script(flat) == 0
    outside = """return [...document.querySelectorAll("main .card, main .glance a, .frame")].filter(each =>
        each.getBoundingClientRect().right > innerWidth + 1).map(each => each.className)"""
    assert browser.execute_script(outside) == []
    fetched = browser.execute_script("return performance.getEntriesByType('resource').map(each => each.name)")
    assert [name for name in fetched if not name.startswith("data:")] == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_an_accessibility_checker_finds_no_serious_violation(
    browser: Any, axe: str, page: Path, width: int, dark: bool
) -> None:
    show(browser, page, width, dark=dark)
    assert violations(browser, axe) == []


def test_the_stories_of_all_causes_open_too(browser: Any, axe: str) -> None:
    for width in (DESKTOP, PHONE):
        show(browser, page_model.TRAPS, width)
        assert browser.get_log("browser") == []
        drawn = "return [...document.images].map(each => each.complete && each.naturalWidth > 0)"
        assert set(browser.execute_script(drawn)) == {True}
        assert browser.execute_script("return document.documentElement.scrollWidth") <= width
        assert violations(browser, axe) == []


def test_the_checker_would_find_one(browser: Any, axe: str, runs: Path) -> None:
    show(browser, runs / "identical/report.html", DESKTOP)
    browser.execute_script("""
        document.querySelector(".answer").style.color = "#eeeeee";
        document.querySelector("button.copy").textContent = "";
        document.querySelector("button.copy").removeAttribute("aria-label");
    """)
    assert {name for name, _ in violations(browser, axe)} == {"color-contrast", "button-name"}


def violations(browser: Any, axe: str) -> list[tuple[str, list[str]]]:
    """The serious and critical ones: rule, and what breaks it."""
    browser.execute_script(axe)
    found = browser.execute_async_script("axe.run().then(arguments[arguments.length - 1])")
    assert len(found["passes"]) > 10, "it did look"
    bad = [each for each in found["violations"] if each["impact"] in ("serious", "critical")]
    return [(each["id"], [node["html"] for node in each["nodes"]]) for each in bad]


def test_names_are_shown_as_text_and_never_run(browser: Any, runs: Path) -> None:
    for page in ("hostile/report.html", "side-by-side.html"):
        show(browser, runs / page, DESKTOP)
        assert HOSTILE in browser.find_element(By.TAG_NAME, "body").text
        scripts = browser.execute_script("return [...document.scripts].map(each => each.textContent)")
        assert not [text for text in scripts if "alert(1)" in text and not text.startswith("[")]
    show(browser, runs / "hostile/report.html", DESKTOP)
    point_at(browser, "loss")
    assert f"{HOSTILE} loss" in browser.find_element(By.CSS_SELECTOR, ".tip:not([hidden])").text


def plot(browser: Any, title: str) -> Any:
    """The drawing area of a chart."""
    (found,) = [
        figure.find_element(By.CSS_SELECTOR, ".plot")
        for figure in browser.find_elements(By.TAG_NAME, "figure")
        if figure.find_element(By.TAG_NAME, "figcaption").text.partition(" fraction")[0] == title
    ]
    browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", found)
    return found


def point_at(browser: Any, title: str) -> None:
    """Moves the pointer to the middle of a chart; again, if scrolling under the resting pointer took it away."""
    found = plot(browser, title)
    tip = found.find_element(By.XPATH, "ancestor::figure").find_element(By.CSS_SELECTOR, ".tip")

    def moved(_: Any) -> bool:
        ActionChains(browser).move_to_element_with_offset(found, 0, 5).move_to_element(found).perform()
        return tip.is_displayed()

    WebDriverWait(browser, 10).until(moved)


@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_pointing_at_an_epoch_shows_its_exact_values(browser: Any, runs: Path, width: int) -> None:
    show(browser, runs / "different/report.html", width)
    point_at(browser, "loss")  # at the middle of three epochs
    tip = browser.find_element(By.CSS_SELECTOR, ".tip:not([hidden])")
    lines = tip.text.splitlines()
    assert lines[0] == "epoch 2"
    for series, value in (("fit loss", "0.5"), ("mine loss", "0.5625"), ("mine val_loss", "0.8125")):
        assert lines[lines.index(series) + 1] == value
    place = browser.execute_script("const b = arguments[0].getBoundingClientRect(); return [b.left, b.right]", tip)
    assert 0 <= place[0] < place[1] <= width


def test_the_keyboard_reaches_every_epoch_and_says_it(browser: Any, runs: Path) -> None:
    show(browser, runs / "different/report.html", DESKTOP)
    area = plot(browser, "loss")
    assert area.get_attribute("role") == "slider"
    browser.execute_script("arguments[0].focus()", area)
    said = []
    for key in (Keys.HOME, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT):
        area.send_keys(key)
        said.append(area.get_attribute("aria-valuetext"))
    assert [text.partition(":")[0] for text in said] == ["epoch 1", "epoch 2", "epoch 3", "epoch 3"]
    assert "mine loss 0.5625" in said[1]


def test_two_curves_that_coincide_are_both_seen(browser: Any, runs: Path) -> None:
    """In the middle of the band of the one, the line of the other: both colours are there, at the same place."""
    show(browser, runs / "identical/report.html", DESKTOP)
    area = plot(browser, "loss")
    strokes = browser.execute_script(
        """return [...arguments[0].querySelectorAll("path.curve")].map(each => {
            const style = getComputedStyle(each); return [style.stroke, parseFloat(style.strokeWidth)]; })""",
        area,
    )
    (band, broad), (line, thin) = max(strokes, key=lambda each: each[1]), min(strokes, key=lambda each: each[1])
    assert band != line and broad > 3 * thin
    marks = "return arguments[0].querySelectorAll('.mark').length"
    assert browser.execute_script(marks, area) == 6, "three epochs, training and validation"


def shown_tips(browser: Any) -> dict[str, list[str]]:
    """By the title of a chart, the lines of the tooltip that it shows."""
    return {
        figure.find_element(By.TAG_NAME, "figcaption").text.partition(" fraction")[0]: tip.text.splitlines()
        for figure in browser.find_elements(By.TAG_NAME, "figure")
        for tip in figure.find_elements(By.CSS_SELECTOR, ".tip:not([hidden])")
    }


@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_both_charts_mark_the_same_epoch_and_the_values_are_beside_the_curves(
    browser: Any, runs: Path, width: int
) -> None:
    show(browser, runs / "identical/report.html", width)
    point_at(browser, "loss")
    tips = shown_tips(browser)
    assert set(tips) == {"loss", "accuracy"} and {lines[0] for lines in tips.values()} == {"epoch 2"}
    marked = browser.execute_script("""
        const cursors = [...document.querySelectorAll("[data-group=epochs] .cursor:not([hidden])")];
        return cursors.map(each => each.style.left);""")
    assert len(marked) == 5 and set(marked) == {"50%"}, "curves, gaps and seconds"
    tip, area = browser.find_element(By.CSS_SELECTOR, ".tip:not([hidden])"), plot(browser, "loss")
    box, frame = browser.execute_script(
        "return [arguments[0], arguments[1]].map(each => each.getBoundingClientRect().toJSON())", tip, area
    )
    assert frame["top"] <= box["top"] and box["bottom"] <= frame["bottom"] + 1
    middle = frame["left"] + frame["width"] / 2
    assert min(abs(box["left"] - middle), abs(box["right"] - middle)) < 20 or width == PHONE
    ActionChains(browser).move_to_element(browser.find_element(By.TAG_NAME, "h1")).perform()
    assert shown_tips(browser) == {}
    browser.execute_script("arguments[0].focus()", area)
    tops = []
    for key in (Keys.HOME, Keys.END):  # the loss falls
        area.send_keys(key)
        top = "return arguments[0].getBoundingClientRect().top - arguments[1].getBoundingClientRect().top"
        tops.append(browser.execute_script(top, tip, area))
    assert tops[0] < tops[1] - 50


def test_curves_are_chosen_with_the_keyboard_and_leave_the_tooltip_too(browser: Any, runs: Path) -> None:
    show(browser, runs / "identical/report.html", DESKTOP)
    drawn = """return [...arguments[0].querySelectorAll("g[data-key='0v'], g[data-key='1']")].map(
        each => each.getBoundingClientRect().width > 0)"""
    area = plot(browser, "loss")
    assert browser.execute_script(drawn, area) == [True, True]
    box = browser.find_element(By.CSS_SELECTOR, "input[data-shows='0v']")
    assert box.find_element(By.XPATH, "..").text == "fit, validation"
    box.send_keys(Keys.SPACE)
    assert browser.execute_script(drawn, area) == [False, True]
    point_at(browser, "accuracy")
    assert "fit loss" in shown_tips(browser)["loss"] and "fit val_loss" not in shown_tips(browser)["loss"]
    assert "fit val_accuracy" not in shown_tips(browser)["accuracy"], "in both charts"
    box.send_keys(Keys.SPACE)
    assert browser.execute_script(drawn, area) == [True, True]


@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_zooming_shows_every_step_around_the_first_difference(browser: Any, runs: Path, width: int) -> None:
    show(browser, runs / "long/report.html", width)
    point_at(browser, "Weight gap after every step distance of all weights (Euclidean norm)")
    assert shown_tips(browser).popitem()[1][0].startswith("epoch 1, step 40")
    everything, _, ten = browser.find_elements(By.CSS_SELECTOR, ".zoom button")
    ten.send_keys(Keys.ENTER)
    pressed = "return arguments[0].map(each => each.getAttribute('aria-pressed'))"
    assert browser.execute_script(pressed, [everything, ten]) == ["false", "true"]
    timeline, strip = browser.find_elements(By.CSS_SELECTOR, "[data-group=steps]")
    for figure in (timeline, strip):
        assert "step of epoch 2" in figure.find_element(By.CSS_SELECTOR, ".xs").text
        assert "100" in figure.find_element(By.CSS_SELECTOR, ".xs").text.split()
        outside = """const plot = arguments[0].querySelector(".plot").getBoundingClientRect();
            return [...arguments[0].querySelectorAll("line.epoch:not(.away)")].filter(each =>
                each.getBoundingClientRect().x > plot.right + 1).length"""
        assert browser.execute_script(outside, figure) == 0
    area = timeline.find_element(By.CSS_SELECTOR, ".plot")
    browser.execute_script("arguments[0].focus()", area)
    said = []
    for key in (Keys.HOME, Keys.END):
        area.send_keys(key)
        said.append(area.get_attribute("aria-valuetext"))
    assert [text.partition(":")[0] for text in said] == ["epoch 2, step 90", "epoch 2, step 110"]
    assert "equal, bit for bit" in said[0] and "equal" not in said[1]
    everything.click()
    assert "step of epoch 2" not in timeline.text

    plot = timeline.find_element(By.CSS_SELECTOR, ".plot")
    middle = plot.size["width"] // 2
    drag = ActionChains(browser).move_to_element_with_offset(plot, -middle // 2, 0).click_and_hold()
    drag.move_by_offset(middle // 2, 0).perform()
    assert timeline.find_element(By.CSS_SELECTOR, ".chosen").is_displayed()
    drag.release().perform()
    for figure in (timeline, strip):
        begin, *_ = figure.find_element(By.CSS_SELECTOR, ".xs").text.split("\n")
        assert begin.startswith("epoch 1, step ") and "see all steps" in figure.text
    assert browser.execute_script(pressed, [everything, ten]) == ["false", "false"]
    ActionChains(browser).double_click(plot).perform()
    assert browser.execute_script(pressed, [everything, ten]) == ["true", "false"]
    assert "see all steps" not in timeline.text


def test_curves_can_be_smoothed_on_a_logarithmic_axis_and_zoomed_by_dragging(browser: Any, runs: Path) -> None:
    show(browser, runs / "alone/curves/report.html", DESKTOP)
    losses, accuracies = browser.find_elements(By.CSS_SELECTOR, "[data-ways]")[:2]
    path = """return arguments[0].querySelector('[data-key="0"] path.curve')
        .getAttribute('d').match(/[^ML ]+/g).map(Number)"""
    ticks = "return [...arguments[0].querySelectorAll('.ys span')].map(each => each.textContent)"
    plain, axis = browser.execute_script(path, losses), browser.execute_script(ticks, losses)
    log, smooth = browser.find_elements(By.CSS_SELECTOR, ".ways button")

    log.send_keys(Keys.ENTER)
    bent = browser.execute_script(path, losses)
    assert bent[::2] == plain[::2] and bent[1::2] != plain[1::2]
    assert all(0 <= y <= 1000 for y in bent[1::2]) and sorted(bent[1::2]) == bent[1::2], "the loss falls, down the page"
    first, second, _, fourth, *_ = bent[3::2]  # the first point is there twice
    assert second - first == pytest.approx(fourth - second, abs=0.5), "halves are equally far apart"
    assert second - first > 50
    assert browser.execute_script(ticks, losses) != axis
    assert log.get_attribute("aria-pressed") == "true"
    log.send_keys(Keys.ENTER)
    assert (browser.execute_script(path, losses), browser.execute_script(ticks, losses)) == (plain, axis)

    smooth.send_keys(Keys.ENTER)
    heights = plain[3::2]
    expected = [heights[0], np.mean(heights[:3]), *(np.mean(heights[k - 2 : k + 3]) for k in range(2, 6))]
    assert browser.execute_script(path, losses)[3:15:2] == pytest.approx(expected, abs=0.2)
    smooth.send_keys(Keys.ENTER)
    assert browser.execute_script(path, losses) == plain

    plot = losses.find_element(By.CSS_SELECTOR, ".plot")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", plot)
    drag = ActionChains(browser).move_to_element_with_offset(plot, -plot.size["width"] // 4, 0).click_and_hold()
    drag.move_by_offset(plot.size["width"] // 2, 0).release().perform()
    for figure in (losses, accuracies):
        assert "epoch 3" in figure.text and "epoch 1" not in figure.text and "see all epochs" in figure.text
    ActionChains(browser).double_click(plot).perform()
    assert "see all" not in losses.text + accuracies.text


def test_the_strip_of_layers_says_the_gap_of_each(browser: Any, runs: Path) -> None:
    show(browser, runs / "long/report.html", DESKTOP)
    strip = browser.find_element(By.CSS_SELECTOR, ".strip")
    assert "First to differ (epoch 2, step 100): all of them at once." in strip.text
    area = strip.find_element(By.CSS_SELECTOR, ".plot")
    browser.execute_script("arguments[0].focus()", area)
    area.send_keys(Keys.END)
    assert area.get_attribute("aria-valuetext").startswith(
        "epoch 2, step 392, the largest of 9 steps: kernel 3.0e-01; bias 3.0e-01"
    )
    colours = browser.execute_script(
        """const plot = arguments[0].querySelector(".plot");
        return [getComputedStyle(plot).backgroundColor,
                ...[...plot.querySelectorAll("path.cell")].map(each => getComputedStyle(each).fill)]""",
        strip,
    )
    assert len(set(colours)) == len(colours) > 2, "every size of gap has a shade of its own"


def test_the_files_in_the_page_are_saved_as_they_are(browser: Any, runs: Path, tmp_path: Path) -> None:
    show(browser, runs / "identical/report.html", DESKTOP)
    browser.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    for name in ("metrics.csv", "verdict.json"):
        browser.find_element(By.LINK_TEXT, f"Download {name}").click()
        saved = tmp_path / f"identical-{name}"
        WebDriverWait(browser, 10).until(lambda _, saved=saved: saved.exists())
        assert saved.read_bytes() == (runs / "identical" / name).read_bytes()
    assert browser.get_log("browser") == []


@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_the_list_of_runs_is_filtered_and_sorted(browser: Any, runs: Path, width: int) -> None:
    show(browser, runs / "index.html", width)
    names = (
        "return [...document.querySelectorAll('tbody tr')].filter(each => !each.hidden).map(each => each.dataset.run)"
    )
    assert browser.execute_script(names)[0] == "long", "the newest first"
    choose = {each.get_attribute("name"): Select(each) for each in browser.find_elements(By.TAG_NAME, "select")}
    choose["sort"].select_by_value("run")
    assert browser.execute_script(names) == sorted([*recorded.KINDS, "hostile", "long"])
    choose["sort"].select_by_value("-run")
    choose["verdict"].select_by_visible_text("different")
    assert browser.execute_script(names) == ["long", "hostile", "different"]
    assert "3 of 7 runs shown" in browser.find_element(By.TAG_NAME, "output").text
    address = browser.current_url
    assert address.endswith("#verdict=different&sort=-run")
    browser.get("about:blank")
    browser.get(address)
    assert browser.execute_script(names) == ["long", "hostile", "different"], "the address brings it back"
    choose = {each.get_attribute("name"): Select(each) for each in browser.find_elements(By.TAG_NAME, "select")}
    choose["verdict"].select_by_visible_text("all")
    assert len(browser.execute_script(names)) == 7 and browser.find_element(By.TAG_NAME, "output").text == ""
    if width == DESKTOP:  # a phone shows no headings
        browser.find_element(By.XPATH, "//th/button[text()='verdict']").click()
        rows = browser.find_elements(By.CSS_SELECTOR, "tbody tr")
        words = [row.get_attribute("data-verdict") for row in rows]
        assert words == sorted(words)
        (sorted_by,) = browser.find_elements(By.CSS_SELECTOR, "th[aria-sort=ascending]")
        assert sorted_by.text.startswith("verdict")


def test_no_word_of_the_list_is_broken_in_the_middle(browser: Any, runs: Path) -> None:
    show(browser, runs / "index.html", DESKTOP)
    heights = """return [...document.querySelectorAll("thead th, tbody .pill")].map(
        each => each.getBoundingClientRect().height)"""
    assert max(browser.execute_script(heights)) < 45, "a line each"


def test_a_long_name_of_a_run_stays_beside_its_box(browser: Any, runs: Path) -> None:
    show(browser, runs / "side-by-side.html", PHONE)
    places = """const name = document.querySelector("[aria-label=Runs] strong");
        name.textContent = "my_task-fit-my_loop-mirrored-10-epochs-seed-0".repeat(2);
        const box = name.parentElement.querySelector("input").getBoundingClientRect();
        const shown = name.getBoundingClientRect();
        return [shown.left - box.right, shown.right, box.top - shown.top, shown.bottom - box.bottom]"""
    left, right, above, below = browser.execute_script(places)
    assert left > 0 and right <= PHONE and above > 0 and below > 0, "to the right of it, in several lines"


def test_a_chart_of_runs_ends_with_the_longest_that_is_chosen(browser: Any, runs: Path) -> None:
    show(browser, runs / "side-by-side.html", DESKTOP)
    figure = browser.find_element(By.CSS_SELECTOR, "figure[data-group=steps]")
    last = "return parseInt([...arguments[0].querySelectorAll('.xs span:not(.name)')].at(-1).textContent)"
    assert browser.execute_script(last, figure) == 800
    legend = browser.find_elements(By.CSS_SELECTOR, "[data-of=steps]")
    long = next(each for each in legend if each.find_element(By.XPATH, "..").text == "long")
    long.send_keys(Keys.SPACE)
    assert browser.execute_script(last, figure) <= 13
    wide = """const box = arguments[0].querySelector(".plot").getBoundingClientRect();
        return Math.max(...[...arguments[0].querySelectorAll("g:not(.away) .mark, g:not(.away) path.curve")].map(
            each => each.getBoundingClientRect().right)) / box.right"""
    assert 0.9 < browser.execute_script(wide, figure) <= 1.02, "the shorter runs now take the whole width"
    training = browser.find_element(By.CSS_SELECTOR, "[data-shows=training]")
    training.send_keys(Keys.SPACE)
    point_at(browser, "loss")
    lines = shown_tips(browser)["loss"]
    assert "identical: fit val_loss" in lines and "identical: fit loss" not in lines


def test_without_scripts_a_page_still_shows_everything_that_it_says(browser: Any, runs: Path) -> None:
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        for page, words in (("long/report.html", "First to differ"), ("index.html", "not-comparable")):
            show(browser, runs / page, DESKTOP)
            document = browser.execute_cdp_cmd("DOM.getDocument", {"depth": 0})["root"]["nodeId"]
            shown = {"nodeId": document, "selector": ".zoom, .filters, .legend input"}
            for node in browser.execute_cdp_cmd("DOM.querySelectorAll", shown)["nodeIds"]:
                with pytest.raises(WebDriverException):  # a box that is not drawn has no place
                    browser.execute_cdp_cmd("DOM.getBoxModel", {"nodeId": node})
            content = browser.execute_cdp_cmd("DOM.getOuterHTML", {"nodeId": document})["outerHTML"]
            assert words in content
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_only_the_pages_own_script_runs(browser: Any, runs: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    text = (runs / "identical/report.html").read_text()
    page.write_text(text.replace("</main>", "<script>document.title = 'intruder'</script></main>"))
    show(browser, page, DESKTOP)
    assert browser.title != "intruder" and any(
        "Content Security Policy" in each["message"] for each in browser.get_log("browser")
    )


@pytest.mark.parametrize("allowed", [True, False], ids=["clipboard", "no clipboard"])
def test_the_copy_button_copies(browser: Any, runs: Path, allowed: bool) -> None:
    show(browser, runs / "identical/report.html", DESKTOP)
    if not allowed:
        browser.execute_script("navigator.clipboard.writeText = () => Promise.reject(new Error('no'))")
    button = browser.find_element(By.CSS_SELECTOR, "#run ~ .card button.copy")
    wanted = button.find_element(By.XPATH, "..").find_element(By.TAG_NAME, "pre").text
    assert wanted.startswith("python scripts/compare.py")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})", button)
    button.click()
    assert browser.execute_async_script(
        """const [button, done] = arguments;
        const wait = () => button.textContent === "Copy" ? setTimeout(wait, 20) : done(button.textContent); wait();""",
        button,
    ) in ("Copied", "Copy")
    field = browser.execute_script(
        "const field = document.createElement('textarea'); arguments[0].after(field); field.focus(); return field",
        button,
    )
    field.send_keys(Keys.CONTROL, "v")
    assert field.get_property("value") == wanted


def test_it_prints_whole_on_white_paper(browser: Any, runs: Path) -> None:
    show(browser, runs / "different/report.html", DESKTOP, dark=True)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    colour = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    hidden = browser.execute_script("return getComputedStyle(document.querySelector('button.copy')).display")
    assert (colour, hidden) == ("rgb(255, 255, 255)", "none")
    printed = browser.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    assert len(base64.b64decode(printed["data"])) > 20_000
    assert browser.execute_script("return [...document.querySelectorAll('details')].every(each => each.open)")
