const filters = [...document.querySelectorAll("select")];
const show = () => {
  const rows = [...document.querySelectorAll("#all tbody tr")];
  for (const row of rows)
    row.hidden = filters.some(one => one.value !== "" && row.dataset[one.name] !== one.value);
  const left = rows.filter(row => !row.hidden).length;
  for (const told of document.querySelectorAll("output")) told.textContent = `${left} of ${rows.length} entries`;
};
filters.forEach(one => one.addEventListener("change", show));
show();
