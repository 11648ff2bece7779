"""`llms.txt` for programs that read the site: every page of the table of contents, with what it answers."""

from building.contents import children, sections, title_of
from building.stage import place_of


def llms_text(about: str) -> str:
    """The file's text (see llmstxt.org): a title, a sentence, a list of links by section."""
    lines = ["# FedGMR", "", f"> {about}"]
    for section, entries in sections().items():
        lines += ["", f"## {section}", ""]
        for entry in entries:
            lines.append(f"- [{entry.title}]({place_of(entry.path).with_suffix('.html')}): {entry.answers}")
            for child in children(entry.path):
                below = place_of(child).with_suffix(".html")
                lines.append(f"- [{title_of(child)}]({below}): a part of {entry.title}.")
    return "\n".join([*lines, ""])
