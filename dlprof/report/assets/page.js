for (const block of document.querySelectorAll(".block")) {
  const button = document.createElement("button");
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    const code = block.querySelector("code");
    try { await navigator.clipboard.writeText(code.textContent); }
    catch {
      const range = document.createRange();
      range.selectNodeContents(code);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      document.execCommand("copy");
    }
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  block.append(button);
}
const SCALES = {
  "\u00b5s": 1e-6, ms: 1e-3, s: 1, min: 60, h: 3600, d: 86400,
  KiB: 2 ** 10, MiB: 2 ** 20, GiB: 2 ** 30, TiB: 2 ** 40, PiB: 2 ** 50,
};
const figure = (text) => {
  const found = /(-?[\d,]*\.?\d+)(?: ([^\d\s/]+)(?: (\d+) ([a-z]+))?)?/.exec(text);  // MiB of MiB/s
  if (!found) return NaN;
  const [, whole, unit, rest, smaller] = found;
  const more = smaller in SCALES ? rest * SCALES[smaller] : 0;  // 2 min 5 s
  return whole.replaceAll(",", "") * (SCALES[unit] ?? 1) + more;
};
for (const table of document.querySelectorAll("table")) {
  table.querySelectorAll("th").forEach((head, place) => {
    const isText = head.classList.contains("left");
    head.classList.add("sorts");
    head.addEventListener("click", () => {
      const up = head.dataset.up !== "1";
      head.dataset.up = up ? "1" : "0";
      const body = table.tBodies[0];
      const rows = [...body.rows].sort((a, b) => {
        const [one, two] = [a, b].map((row) => row.cells[place].textContent);
        const [x, y] = isText ? [NaN, NaN] : [one, two].map(figure);
        if (isNaN(x) !== isNaN(y)) return isNaN(x) - isNaN(y);  // what isn't known comes last
        const order = isNaN(x) ? one.localeCompare(two, undefined, {numeric: true}) : x - y;
        return up ? order : -order;
      });
      body.append(...rows);
    });
  });
}
