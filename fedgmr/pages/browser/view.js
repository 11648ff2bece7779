// The view: everything that the reader has chosen. It is kept in the address after #, so a link shows the same.

const DEFAULT_VIEW = {
  x: "seconds",
  y: ["", "loss"],
  log: [false, false],
  smoothing: 0,
  zoom: null,
  bands: true,
  hidden: [],
  run: "",
  sort: "",
  filter: "",
  map: ["", ""], // the settings of both axes
};

function viewOf(fragment) {
  const given = new URLSearchParams(fragment.replace(/^#/, ""));
  const list = (name) => given.get(name)?.split(",").map(decodeURIComponent);
  const zoom = list("zoom")?.map(Number);
  return {
    x: given.get("x") in AXES ? given.get("x") : DEFAULT_VIEW.x,
    y: list("y")?.length === 2 ? list("y") : [...DEFAULT_VIEW.y],
    log: [0, 1].map((place) => given.get("log")?.[place] === "1"),
    smoothing: Math.min(0.99, Math.max(0, Number(given.get("smooth")) || 0)),
    zoom: zoom?.length === 2 && zoom.every(isNumber) && zoom[0] < zoom[1] ? zoom : null,
    bands: given.get("bands") !== "0",
    hidden: list("hidden") ?? [],
    run: given.get("run") ?? "",
    sort: given.get("sort") ?? "",
    filter: given.get("filter") ?? "",
    map: list("map")?.length === 2 ? list("map") : [...DEFAULT_VIEW.map],
  };
}

function fragmentOf(view) {
  const given = new URLSearchParams();
  const put = (name, value, differs) => differs && given.set(name, value);
  const joined = (values) => values.map((value) => encodeURIComponent(value)).join(",");
  put("x", view.x, view.x !== DEFAULT_VIEW.x);
  put("y", joined(view.y), view.y.join() !== DEFAULT_VIEW.y.join());
  put("log", view.log.map(Number).join(""), view.log.some(Boolean));
  put("smooth", view.smoothing, view.smoothing > 0);
  put("zoom", view.zoom?.map((value) => Number(value.toPrecision(6))).join(), view.zoom);
  put("bands", 0, !view.bands);
  put("hidden", joined(view.hidden), view.hidden.length);
  put("map", joined(view.map), view.map.some(Boolean));
  for (const name of ["run", "sort", "filter"]) put(name, view[name], view[name]);
  return given.size ? `#${given}` : "";
}
