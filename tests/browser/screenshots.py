"""Pictures of the built site: wide and on a phone, light and dark; `make screenshots`.

Nothing is asserted: a person has to look at the pictures.
"""

import shutil
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).parents[2]
SITE, OUT = ROOT / "site", ROOT / "build" / "screenshots"
PAGES = {
    "home": "index.html",
    "method": "methods/caote.html",
    "notebook": "notebooks/02_caote.html",
    "viewer": "viewer.html",
    "playground": "playground/index.html?step=80",
}
WINDOWS = {"desk": {"width": 1280, "height": 900}, "phone": {"width": 390, "height": 844}}
LONGEST = 6000
"""Pixels of a picture; longer pages are cut."""


def main() -> None:
    """Open every page in every window and theme, and write what it looks like."""
    if not (SITE / "index.html").exists():
        raise SystemExit(f"{SITE} holds no site: run `make docs`")
    chromium = shutil.which("chromium")
    if chromium is None:
        raise SystemExit("there is no chromium: apt-get install chromium")
    OUT.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            for window, size in WINDOWS.items():
                page = browser.new_page(viewport=size, color_scheme=scheme, device_scale_factor=1)
                for name, address in PAGES.items():
                    page.goto(f"{SITE.as_uri()}/{address}")
                    picture(page, OUT / f"{name}-{window}-{scheme}.png")
                page.close()
        browser.close()
    print(f"{len(list(OUT.glob('*.png')))} pictures in {OUT}")


def picture(page: Page, path: Path) -> None:
    """Scroll once through a page, so that all of it is drawn, and write it to a file."""
    page.wait_for_timeout(400)
    height = min(LONGEST, page.evaluate("document.documentElement.scrollHeight"))
    for top in range(0, height, 700):
        page.mouse.wheel(0, 700)
        page.wait_for_timeout(60 if top else 300)
    page.evaluate("scrollTo(0, 0)")
    page.wait_for_timeout(200)
    width = page.viewport_size["width"] if page.viewport_size else 0
    clip = {"x": 0, "y": 0, "width": width, "height": height}
    page.screenshot(path=path, full_page=True, clip=clip)


if __name__ == "__main__":
    main()
