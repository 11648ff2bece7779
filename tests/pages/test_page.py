"""The text of the page: one file, a policy that fits it, and nothing from a run that could become markup."""

import base64
import hashlib
import json
import re
from html import unescape

import pytest

from fedgmr.pages.page import page, policy


def elements(text: str, name: str) -> list[str]:
    return re.findall(rf"<{name}\b[^>]*>(.*?)</{name}>", text, re.DOTALL)


def checksum(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@pytest.mark.parametrize("data", [None, '{"state": {"runs": []}, "columns": {}}'])
def test_the_policy_admits_the_page_s_own_style_and_script_alone(data: str | None) -> None:
    text = page("runs", data)
    (style,), (inlined, script) = elements(text, "style"), elements(text, "script")
    given = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert given
    rules = dict(rule.strip().split(" ", 1) for rule in unescape(given[1]).split(";"))
    assert unescape(given[1]) == policy(live=data is None)
    assert rules["default-src"] == "'none'"
    assert rules["style-src"] == checksum(style)
    assert rules["script-src"] == checksum(script)
    assert rules.get("connect-src") == ("'self'" if data is None else None)
    assert inlined == (data or "")


def test_the_page_names_nothing_outside_and_has_no_markup_by_text() -> None:
    text = page("runs")
    assert set(re.findall(r"https?://[^\s\"'`]+", text)) == {"http://www.w3.org/2000/svg"}
    assert re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text) == []
    assert re.findall(r"\s(?:on[a-z]+|style)=\"", text.split("<script")[0]) == []


def test_hostile_titles_and_data_stay_text() -> None:
    hostile = "</script><script>alert(1)</script><!--{script}{data}"
    plain, text = page("runs", "{}"), page(hostile, json.dumps({"name": hostile}))
    assert len(elements(text, "script")) == len(elements(plain, "script")) == 2
    assert json.loads(elements(text, "script")[0]) == {"name": hostile}
    assert elements(text, "title") == elements(text, "h1")
    assert unescape(elements(text, "title")[0]) == hostile
    assert "<!--" not in text
