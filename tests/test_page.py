"""The page in a real browser: it draws, sorts, filters, and asks no network."""

import importlib
import shutil
import sys
from pathlib import Path

import pytest

from parsgd import report

webdriver = pytest.importorskip("selenium.webdriver")

sys.path.insert(0, str(Path(__file__).parent))
fake_jobs = importlib.import_module("fake_jobs")

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --no-first-run --disable-sync "
    "--disable-background-networking --disable-component-update"
)
pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER),
    reason="needs chromium and chromedriver (Debian: chromium, chromium-driver)",
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    service = importlib.import_module("selenium.webdriver.chrome.service")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in FLAGS.split():
        options.add_argument(flag)
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('profile')}")
    options.set_capability(
        "goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"}
    )
    driver = webdriver.Chrome(options, service.Service(DRIVER))
    driver.set_script_timeout(60)
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    root = tmp_path_factory.mktemp("sweep")
    fake_jobs.fake_sweep(root, seeds=2, workers=(1, 2, 4))
    return report.build(root, target=0.9).page.as_uri()


@pytest.fixture
def page(browser, url):
    return opened(browser, url)


def opened(browser, url):
    wait = importlib.import_module("selenium.webdriver.support.ui").WebDriverWait
    browser.get(url)
    wait(browser, 20).until(
        lambda b: b.execute_script(
            "return document.querySelectorAll('.dt-search input').length == 1"
            " && [...document.querySelectorAll('.plot')].every(p => p._fullLayout)"
        )
    )
    return browser


def column(browser, heading):
    """The shown text of a column, over all pages of the table."""
    return browser.execute_script(
        "const heads = [...document.querySelectorAll('.dt-scroll-head th')];"
        "const i = heads.findIndex(h => h.innerText.trim().startsWith(arguments[0]));"
        "return [...document.querySelectorAll('.dt-scroll-body tbody tr')]"
        ".map(r => r.cells[i]?.innerText ?? '')",
        heading,
    )


def click_heading(browser, heading):
    browser.execute_script(
        "[...document.querySelectorAll('.dt-scroll-head th')]"
        ".find(h => h.innerText.trim().startsWith(arguments[0])).click()",
        heading,
    )


def test_plots_are_drawn_with_data(page):
    drawn = page.execute_script(
        "return Object.fromEntries([...document.querySelectorAll('.plot')].map(p => "
        "[p.id, [...p.querySelectorAll('.scatterlayer .trace')].filter(t => "
        "[...t.querySelectorAll('path')].some(q => (q.getAttribute('d') || '')"
        ".length > 10)).length]))"
    )
    kinds = {name.partition("-")[0] for name in drawn}
    assert kinds == {"samples", "round", "bytes", "seconds", "throughput", "pareto"}
    # 10 completed configurations, each a line and a band
    assert drawn["samples-0"] == 20 and drawn["pareto-0"] == 11
    assert min(drawn.values()) > 0


def test_no_request_and_no_console_error(page):
    requested = [
        entry
        for entry in page.execute_script(
            "return performance.getEntriesByType('resource').map(e => e.name)"
        )
        if not entry.startswith(("blob:", "data:"))
    ]
    assert requested == []
    sent = [
        line["message"]
        for line in page.get_log("performance")
        if "Network.requestWillBeSent" in line["message"]
        and '"url":"http' in line["message"]
    ]
    assert sent == []
    assert [x for x in page.get_log("browser") if x["level"] == "SEVERE"] == []


def test_table_sorts_by_value_on_click(page):
    def seconds():
        shown = [text.partition(" ")[0] for text in column(page, "Time to target")]
        return [float(text) for text in shown if text]

    click_heading(page, "Time to target")
    upwards = seconds()
    click_heading(page, "Time to target")
    assert len(upwards) >= 9 and upwards == sorted(upwards)
    assert seconds() == sorted(upwards, reverse=True)
    # by value, not by letter: 95 MB comes before 101 MB
    click_heading(page, "Bytes to")
    units = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}
    shown = [text for text in column(page, "Bytes to") if text]
    sent = [float(text.split()[0]) * units[text.split()[1]] for text in shown]
    assert sent == sorted(sent) and shown != sorted(shown)


def test_table_filters_by_the_search_box(page):
    assert len(set(column(page, "Strategy"))) == 4
    page.find_element("css selector", ".dt-search input").send_keys("block_mom")
    assert set(column(page, "Strategy")) == {"block_momentum"}


def test_cells_carry_error_and_n(page):
    assert all(
        "±" in text and text.endswith("(n=2)")
        for text in column(page, "Accuracy")
        if text
    )


def test_hover_tells_the_configuration(page):
    told = page.execute_script(
        "Plotly.Fx.hover('pareto-0', [{curveNumber: 1, pointNumber: 0}]);"
        "return document.querySelector('#pareto-0 .hoverlayer').textContent"
    )
    assert "workers=4" in told and "global batch 128" in told and "n = 2" in told


def test_filters_hide_a_strategy_on_every_plot_and_redraw_the_front(page):
    shown = (
        "return [...document.querySelectorAll('.plot')].map(p => p._fullData.filter("
        "t => t.visible === true && t.meta?.facets?.strategy === 'local_sgd').length)"
    )
    front = (
        "return document.getElementById('pareto-0').data"
        ".find(t => t.meta.front).x.length"
    )
    assert min(page.execute_script(shown)) > 0
    for chip in page.find_elements("css selector", ".chip"):
        if chip.text == "local_sgd":
            chip.click()
    assert max(page.execute_script(shown)) == 0
    assert page.execute_script(front) > 0


@pytest.mark.parametrize("width", [1280, 400])
def test_page_fits_its_width(browser, url, width):
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    opened(browser, url)
    wide = browser.execute_script("return document.documentElement.scrollWidth")
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert wide <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_reads_on_its_background(browser, url, scheme):
    scheme_of = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", scheme_of)
    opened(browser, url)
    back, text, ticks = browser.execute_script(
        "const c = (q, k) => getComputedStyle(document.querySelector(q))[k];"
        "return [c('html', 'backgroundColor'), c('.answer', 'color'),"
        " c('.plot .xtick text', 'fill')]"
    )
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})

    def light(color):
        channels = color[color.index("(") + 1 : -1].split(",")[:3]
        return sum(float(c) for c in channels) / 765

    assert (light(back) < 0.2) == (scheme == "dark")
    assert min(abs(light(back) - light(text)), abs(light(back) - light(ticks))) > 0.6


def test_cells_read_as_on_the_terminal(browser, tmp_path):
    for seed, last in enumerate([0.9, 0.9, 0.7]):
        ends = {"a": (last, 0.0061), "b": (0.9, 0.006 + 0.00007 * seed)}
        for workers, (name, (accuracy, seconds)) in enumerate(ends.items(), start=1):
            lines = [
                fake_jobs.line(0, 0.1),
                fake_jobs.line(9, accuracy, seconds=seconds)
                | {"bytes": 80_000 + 4_000 * seed * (name == "a")},
            ]
            folder = tmp_path / f"{name}{seed}"
            fake_jobs.write_job(folder, lines, seed=seed, workers=workers)
    opened(browser, report.build(tmp_path, target=0.8).page.as_uri())
    assert column(browser, "Time to target") == [
        "0.0061 ± 0.00004",
        "0.0061 ± 0 (2 of 3)",
    ]
    sent = column(browser, "Bytes to target")
    assert sorted(sent) == ["80 kB ± 0", "82 kB ± 2 kB (2 of 3)"]
    assert column(browser, "Accuracy") == ["0.9000 ± 0 (n=3)", "0.8333 ± 0.0667 (n=3)"]


def test_small_numbers_keep_their_digits(browser, tmp_path):
    for seed, round in enumerate((3, 4)):
        summary = {"samples_per_second": 0.42, "train_seconds": 5, "workers": 2}
        lines = [fake_jobs.line(0, 0.1), fake_jobs.line(round, 0.9)]
        fake_jobs.write_job(
            tmp_path / str(seed), lines, seed=seed, workers=2, summary=summary
        )
    fast = {"samples_per_second": 1234.56, "train_seconds": 5}
    fake_jobs.write_job(tmp_path / "4", lines, workers=4, summary=fast)
    opened(browser, report.build(tmp_path, target=0.8).page.as_uri())
    assert column(browser, "Throughput") == ["0.42", "1,235"]
    assert column(browser, "Rounds to target") == ["3.5 ± 0.5", "4"]


@pytest.mark.parametrize("heading", ["Time to target", "Throughput", "mine", "word"])
def test_missing_values_are_last_in_both_directions(browser, tmp_path, heading):
    lines = [fake_jobs.line(0, 0.1), fake_jobs.line(3, 0.9)]
    for workers in (1, 2, 4):
        known = {"samples_per_second": 100.0 * workers, "train_seconds": 5}
        lines[1]["seconds"] = float(workers)
        own = {"mine": workers / 8, "word": "abcde"[workers]}
        fake_jobs.write_job(
            tmp_path / str(workers), lines, workers=workers, summary=known, **own
        )
    fake_jobs.write_job(tmp_path / "8", [], workers=8, status="failed")
    opened(browser, report.build(tmp_path, target=0.8).page.as_uri())
    for _ in range(2):
        click_heading(browser, heading)
        shown = column(browser, heading)
        assert shown[-1] == "" and all(shown[:-1]), shown
    assert shown[0] > shown[1] > shown[2]
