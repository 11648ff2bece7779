// The terms of the convergence bound for one run, at its newest row. Numbers and sentences come from Python
// (reporting/theory.py and theory_words.py); here they are only arranged.

function drawTheory(element, known) {
  const theory = known?.theory;
  if (!theory) {
    element.replaceChildren(make("p", { className: "soft" }, "Recipe or rows do not tell who holds which level."));
    return;
  }
  const shares = theory.measured
    ? "f², the share of a gradient inside a level, is as measured in an update of the whole model."
    : "f², the share of a gradient inside a level, was not recorded: it is taken for the density.";
  element.replaceChildren(
    make("p", {}, `${theory.bound} ${theory.advice} `, make("span", { className: "soft" }, shares)),
    theoryTable("terms of the bound", theory.terms, [
      ["term", ({ name }) => name, "term"],
      ["now", ({ value }) => short(value)],
      ["all whole", ({ whole }) => (isNumber(whole) ? short(whole) : "")],
      ["meaning", ({ meaning }) => meaning, "text"],
    ]),
    make(
      "div",
      { className: "aside" },
      theoryTable("levels", theory.levels, [
        ["density", ({ density }) => String(density)],
        ["clients", ({ clients }) => String(clients)],
        ["coverage", ({ coverage }) => String(coverage)],
        ["f²", (level) => short(level["f²"])],
        ["skew", ({ skew }) => short(skew)],
        ["staleness²", ({ staleness }) => short(staleness)],
      ]),
      theory.moves.length
        ? theoryTable("if one client moved up", theory.moves, [
            ["one client from", ({ from, to }) => `${from} to ${to}`],
            ["drift", ({ drift }) => signed(drift)],
            ["variance", ({ variance }) => signed(variance)],
            ["noise", ({ noise }) => signed(noise)],
          ])
        : "",
    ),
  );
}

function theoryTable(label, rows, columns) {
  const table = make("table", {}, ...tableParts(columns, rows));
  return make("div", { className: "wide", tabIndex: 0, role: "region", "aria-label": label }, table);
}

const signed = (value) => `${value > 0 ? "+" : value < 0 ? "−" : ""}${short(Math.abs(value))}`;
