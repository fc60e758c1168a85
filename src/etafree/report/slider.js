// Shows one of the steps that the page holds; nothing is computed here.
(() => {
  const steps = JSON.parse(document.getElementById("steps").textContent);
  const slider = document.getElementById("eta");
  const output = document.querySelector("output");
  const said = document.getElementById("said");
  const rows = document.querySelectorAll(".moving");

  const see = (element, yes) => element.setAttribute("visibility", yes ? "inherit" : "hidden");

  const place = (row, side, bar) => {
    const drawn = row.querySelector(`g.${side}`);
    row.querySelector(`.${side}-text`).textContent = bar ? bar.text : "–";
    see(drawn, bar);
    if (!bar) return;
    drawn.querySelector("line").setAttribute("x1", `${bar.low}%`);
    drawn.querySelector("line").setAttribute("x2", `${bar.high}%`);
    drawn.querySelector(".mid").setAttribute("x", `${bar.mid}%`);
    see(drawn.querySelector(".mid"), bar.mid > 0 && bar.mid < 100);
    drawn.querySelectorAll(".cut").forEach((arrow, end) => see(arrow, bar.cut[end]));
  };

  const show = () => {
    const step = steps[Number(slider.value)];
    output.textContent = step.label;
    slider.setAttribute("aria-valuetext", step.label);
    said.textContent = step.said;
    rows.forEach((row, i) => {
      place(row, "before", step.before && step.before[i]);
      place(row, "after", step.after && step.after[i]);
    });
  };

  slider.addEventListener("input", show);
  slider.parentElement.hidden = false;
  show();
})();
