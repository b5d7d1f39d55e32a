"""A browser, and readers in it who note what goes wrong; tests skip where there is none."""

import shutil

import pytest

CHROMIUM = shutil.which("chromium")


QUICK = {
    "test_no_text_leaves_its_picture",
    "test_the_page_plays_by_itself_and_the_tour_mends_the_answer",
    "test_a_failure_is_found_and_a_protected_token_stays",
    "test_the_page_opens_where_the_text_turns_wrong",
}
"""A way through each page; the other tests of what is not the built site are slow."""


def pytest_itemcollected(item):
    """Let Playwright use what Python will drop, and mark what is slow."""
    item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning"))
    if item.originalname not in QUICK and not item.get_closest_marker("site"):
        item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("there is no chromium: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"],
        )
        yield running
        running.close()


class Reader:
    """A browser window that notes what goes wrong in it."""

    def __init__(self, browser, home, **options):
        self.context = browser.new_context(**options)
        self.context.on("request", self.meet)
        self.home, self.problems = home, []
        self.page = self.context.new_page()
        self.page.set_default_timeout(120_000)  # others may use the machine, too
        self.page.on("console", self.note)
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("requestfailed", self.miss)
        self.page.on("response", self.check)

    def meet(self, request):
        """Keep requests that are none to the site."""
        if not request.url.startswith((self.home, "data:", "blob:")):
            self.problems.append(f"outside: {request.url}")

    def note(self, message):
        """Keep what a page warns of or complains about."""
        if message.type in ("error", "warning"):
            self.problems.append(f"{self.page.url}: {message.text} {message.location['url']}")

    def miss(self, request):
        """Keep requests that fail, but for those that a reader who leaves the page ends."""
        if request.failure != "net::ERR_ABORTED":
            self.problems.append(f"{request.failure}: {request.url}")

    def check(self, response):
        if response.status >= 400:
            self.problems.append(f"{response.status}: {response.url}")

    def open(self, name):
        self.page.goto(self.home + name, wait_until="load")
        return self.page


@pytest.fixture(scope="module")
def reader(browser):
    return lambda home, **options: Reader(browser, home, **options)
