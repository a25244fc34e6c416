for (const table of document.querySelectorAll("table.sorts")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const value = row => row.cells[column].dataset.value ?? row.cells[column].textContent;
    const body = table.tBodies[0], was = head.getAttribute("aria-sort");
    const words = [...body.rows].some(row => isNaN(value(row)));
    const down = was ? was === "ascending" : !words;
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const order = (a, b) => {
      if (a === "" || b === "") return (a === "") - (b === "");  // what was not measured stands last
      const found = isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b;
      return down ? -found : found;
    };
    body.append(...[...body.rows].sort((a, b) => order(value(a), value(b))));
  }));
}
