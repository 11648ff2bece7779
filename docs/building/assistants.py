"""`llms.txt` for programs that read the site: every page of the table of contents, with what it answers."""

import re

from building.contents import children, sections, title_of
from building.stage import place_of
from building.tree import text_of


def llms_text(about: str) -> str:
    """The file's text (see llmstxt.org): a title, a sentence, a list of links by section."""
    lines = ["# FedGMR", "", f"> {about}"]
    for section, entries in sections().items():
        lines += ["", f"## {section}", ""]
        for entry in entries:
            lines.append(f"- [{entry.title}]({place_of(entry.path).with_suffix('.html')}): {entry.answers}")
            for child in children(entry.path):
                address = place_of(child).with_suffix(".html")
                lines.append(f"- [{title_of(child)}]({address}): {_first_sentence(text_of(child))}")
    return "\n".join([*lines, ""])


def _first_sentence(text: str) -> str:
    """How a document begins, without the marks of links."""
    paragraph = re.split(r"\n\s*\n", text.partition("\n")[2].strip())[0]
    words = re.sub(r"\[(.+?)\]\(.+?\)", r"\1", " ".join(paragraph.split()))
    return re.split(r"(?<=\.)\s", words)[0]
