"""The page of thresher serve, in a browser: a chat, what it shows of the server, and profiles."""

from __future__ import annotations

import os

import pytest
from playwright.sync_api import expect
from serving import serve_command, serving, write_model

pytest.importorskip("uvicorn")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = write_model(tmp_path_factory.mktemp("model"))
    with serving(serve_command(folder, "--max-length", "500", "--api-key", "secret")) as running:
        yield running


@pytest.fixture
def open_page(browser, server):
    """Opens the page; complains of its errors and of requests to others when the test is over."""
    contexts, complaints = [], []

    def note_request(request):
        if not request.url.startswith((server.url.removesuffix("v1"), "data:", "blob:")):
            complaints.append(f"the page asked for {request.url}")

    def open_it(width=1280, dark=False, key="secret"):
        scheme = "dark" if dark else "light"
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        contexts.append(context)
        if key:
            context.add_init_script(f"sessionStorage.setItem('key', '{key}')")
        page = context.new_page()
        page.on("request", note_request)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(server.url.removesuffix("v1"))
        return page

    yield open_it
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.mark.parametrize(("width", "dark"), [(320, False), (320, True), (1280, False), (1280, True)])
def test_a_chat(open_page, width, dark, tmp_path):
    page = open_page(width, dark)
    expect(page.locator("#model")).to_have_text("tiny", timeout=10000)
    expect(page.locator("#state")).to_have_text("ok")
    page.get_by_text("Options").click()
    page.get_by_label("Most tokens").fill("20")
    page.get_by_label("Temperature").fill("0")
    for number, text in enumerate(["the cat sat", "<b>and</b> looked"]):
        page.get_by_label("Message", exact=True).fill(text)
        page.keyboard.press("Enter")
        expect(page.locator(".said.assistant small").nth(number)).to_contain_text(" tokens", timeout=10000)
    assert [said.inner_text() for said in page.locator(".said.user").all()] == ["the cat sat", "<b>and</b> looked"]
    assert page.locator(".said.error").count() == 0
    expect(page.locator("#speed")).not_to_be_empty(timeout=5000)
    assert page.locator("#used-text").inner_text().endswith("%")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), (
        "the page is wider than its window"
    )
    page.screenshot(path=os.environ.get("SERVE_SCREENSHOTS", str(tmp_path)) + f"/{width}-{dark}.png", full_page=True)
    page.get_by_role("button", name="New chat").click()
    assert page.locator(".said").count() == 0


def test_an_answer_can_be_stopped(open_page):
    page = open_page()
    expect(page.locator("#model")).to_have_text("tiny", timeout=10000)
    page.route("**/v1/chat/completions", lambda route: None)  # it takes as long as it likes
    page.get_by_label("Message", exact=True).fill("the cat")
    page.get_by_role("button", name="Send").click()
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("button", name="Send")).to_be_enabled(timeout=5000)
    assert page.locator(".said.error").count() == 0


def test_a_profile_is_recorded_and_fetched(open_page, tmp_path):
    page = open_page()
    expect(page.locator("#model")).to_have_text("tiny", timeout=10000)
    page.get_by_role("button", name="Record", exact=True).click()
    expect(page.get_by_role("button", name="Stop recording")).to_be_visible()
    page.get_by_label("Message", exact=True).fill("the cat")
    page.keyboard.press("Enter")
    expect(page.locator(".said.assistant small")).to_contain_text(" tokens", timeout=20000)
    page.get_by_role("button", name="Stop recording").click()
    expect(page.locator("#profiles li")).to_have_count(1, timeout=20000)
    with page.expect_download() as download:
        page.locator("#profiles li").first.get_by_text("report").click()
    download.value.save_as(tmp_path / "report.txt")
    assert "linear" in (tmp_path / "report.txt").read_text()


def test_a_missing_key_is_said(open_page):
    page = open_page(key="")
    expect(page.locator("#state")).to_contain_text("expected an API key, got none", timeout=10000)
