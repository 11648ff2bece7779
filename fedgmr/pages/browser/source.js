// Where the data comes from, one shape either way: a server that is asked again and again, or the page itself.
// `state()` gives all runs without rows; `columns(id, from, epoch)` the rows of one run from a place on, `events(...)`
// what its clients did since, `provenance(id)` its recipe and what it was computed with.

class LiveSource {
  live = true;

  // The token is part of the page's own address, so a relative one has it too.
  async ask(path) {
    const answer = await fetch(path, { cache: "no-store" });
    if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
    return answer.json();
  }

  state() {
    return this.ask("api/state");
  }

  columns(id, from, epoch) {
    return this.ask(`api/columns?${new URLSearchParams({ id, from, epoch })}`);
  }

  events(id, from, epoch) {
    return this.ask(`api/events?${new URLSearchParams({ id, from, epoch })}`);
  }

  provenance(id) {
    return this.ask(`api/provenance?${new URLSearchParams({ id })}`);
  }
}

class InlinedSource {
  live = false;

  constructor(data) {
    this.data = data;
  }

  async state() {
    return this.data.state;
  }

  async columns(id) {
    return summed(await unpacked(this.data.columns[id]));
  }

  events(id) {
    return unpacked(this.data.events[id]);
  }

  provenance(id) {
    return unpacked(this.data.provenance[id]);
  }
}

// What the report holds: JSON, deflated, in base64.
async function unpacked(text) {
  const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

// Columns of a report as a server gives them. Lists named in `differences` have the differences from row to row, and
// the lists of clients lie client by client, because both make the text smaller.
function summed(found) {
  for (const name of found.differences ?? []) {
    if (name in found.columns) found.columns[name] = summedUp(found.columns[name]);
    if (name in found.clients) found.clients[name] = found.clients[name].map(summedUp);
  }
  for (const [name, lists] of Object.entries(found.clients)) {
    found.clients[name] = Array.from({ length: found.rows }, (_, row) => lists.map((list) => list[row]));
  }
  return found;
}

function summedUp(values) {
  let sum = 0;
  return values.map((value) => (value === null ? null : (sum += value)));
}

function chosenSource() {
  const text = find("data").textContent.trim();
  return text ? new InlinedSource(JSON.parse(text)) : new LiveSource();
}
