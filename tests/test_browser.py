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

import pytest
import recorded
from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

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
    html.write_index(folder)
    html.write_together([*made, hostile], folder / "side-by-side.html")
    return folder


PAGES = [*(f"{kind}/report.html" for kind in recorded.KINDS), "hostile/report.html", "index.html", "side-by-side.html"]


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
    flat = """return [...document.querySelectorAll("figure .plot > svg")].filter(each => {
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
    ActionChains(browser).move_to_element(plot(browser, title)).perform()


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
