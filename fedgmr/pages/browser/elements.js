// Elements of the page and how numbers are written. Texts from files become text nodes here, never markup.

const find = (id) => document.getElementById(id);

// An element with properties and children; strings among the children are text.
function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("aria-") || name === "role" || name === "scope") element.setAttribute(name, value);
    else if (name === "style")
      Object.assign(element.style, value); // by properties: the policy forbids style texts
    else element[name] = value;
  }
  element.append(...children);
  return element;
}

// The page's colours by name. Asking the browser makes it lay the page out, so it is asked once per colour and scheme.
const colours = new Map();
function colourOf(name) {
  if (!colours.has(name)) colours.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
  return colours.get(name);
}

function labelled(text, control) {
  return make("label", {}, text, control);
}

function choice(options, chosen, onChange) {
  const select = make("select", {}, ...options.map(([value, text]) => make("option", { value }, text)));
  select.value = chosen;
  select.addEventListener("change", () => onChange(select.value));
  return select;
}

function tick(text, checked, onChange) {
  const box = make("input", { type: "checkbox", checked });
  box.addEventListener("change", () => onChange(box.checked));
  return make("label", {}, box, text);
}

function button(text, title, onClick, className = "") {
  const element = make("button", { type: "button", title, className }, text);
  element.addEventListener("click", onClick);
  return element;
}

// Puts a box of values beside a place of a plot, inside the plot where it fits.
function placeBeside(box, x, top, width) {
  const left = x > width / 2 ? x - 12 - box.offsetWidth : x + 12;
  Object.assign(box.style, { top: `${top}px`, left: `${Math.max(0, Math.min(left, width - box.offsetWidth))}px` });
}

const isNumber = Number.isFinite; // false for null, of which rows have many

// A number with as many digits as tell neighbours on an axis apart.
function short(value, step = 0) {
  if (!isNumber(value)) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e6 || size < 1e-4))
    return value
      .toExponential(2)
      .replace(/\.?0+e/, "e")
      .replace("e+", "e");
  const digits = step > 0 ? Math.max(0, Math.ceil(-Math.log10(step) - 1e-9)) : size >= 100 ? 1 : 4;
  const text = value.toFixed(Math.min(digits, 10));
  const [whole, rest] = (step > 0 || !text.includes(".") ? text : text.replace(/\.?0+$/, "")).split(".");
  return whole.replace(/\B(?=(\d{3})+$)/g, "\u202f") + (rest ? `.${rest}` : "");
}

function bytes(value) {
  if (!isNumber(value)) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let place = 0;
  for (; Math.abs(value) >= 1000 && place < units.length - 1; place += 1) value /= 1000;
  return `${place && value < 100 ? value.toFixed(value < 10 ? 2 : 1) : value.toFixed(0)} ${units[place]}`;
}

function duration(seconds) {
  if (!isNumber(seconds)) return "–";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${(seconds / 3600).toFixed(1)} h` : `${(seconds / 86400).toFixed(1)} d`;
}

// Head and body of a table. A column is its heading, what a row has there, and the class of its cells.
function tableParts(columns, rows) {
  const head = columns.map(([name, , className = ""]) => make("th", { scope: "col", className }, name));
  const cells = (row) =>
    columns.map(([, content, className = ""]) => make("td", { className }, ...[content(row)].flat()));
  const body = rows.map((row) => make("tr", {}, ...cells(row)));
  return [make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body)];
}

function save(name, content) {
  const address = URL.createObjectURL(content);
  make("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}
