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
const number = (text) => {
  const found = /-?[\d,]*\.?\d+/.exec(text);
  return found ? parseFloat(found[0].replaceAll(",", "")) : NaN;
};
for (const table of document.querySelectorAll("table")) {
  table.querySelectorAll("th").forEach((head, place) => {
    head.classList.add("sorts");
    head.addEventListener("click", () => {
      const up = head.dataset.up !== "1";
      head.dataset.up = up ? "1" : "0";
      const body = table.tBodies[0];
      const rows = [...body.rows].sort((a, b) => {
        const [one, two] = [a, b].map((row) => row.cells[place].textContent);
        const [x, y] = [number(one), number(two)];
        const order = isNaN(x) || isNaN(y) ? one.localeCompare(two) : x - y;
        return up ? order : -order;
      });
      body.append(...rows);
    });
  });
}
