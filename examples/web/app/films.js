/** The list of films with a checkbox each. The likes are kept in this browser's localStorage. */

const KEY = "hushrec-films-liked";
export const LEAST = 3;

const element = (name, properties = {}, ...children) => {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
};

/** A film's title above its genre. */
export const titled = ({ title, genre }) => [
  element("span", { textContent: title }),
  element("span", { className: "genre", textContent: genre }),
];

function load(count) {
  try {
    return JSON.parse(localStorage.getItem(KEY) ?? "[]").filter((item) => Number.isInteger(item) && item >= 0 && item < count);
  } catch {
    return []; // damaged, or not allowed here
  }
}

/** Shows the films and calls changed(items) with the liked item numbers, now and after each change. */
export function showFilms(films, changed) {
  const find = (id) => document.getElementById(id);
  const liked = new Set(load(films.length));
  const update = () => {
    const items = [...liked].sort((a, b) => a - b);
    const missing = LEAST - items.length;
    find("count").textContent = missing > 0 ? `${items.length} liked; choose at least ${LEAST}.` : `${items.length} liked.`;
    localStorage.setItem(KEY, JSON.stringify(items));
    changed(items);
  };
  const rows = films.map((film, item) => {
    const box = element("input", { type: "checkbox", checked: liked.has(item) });
    box.addEventListener("change", () => {
      if (box.checked) liked.add(item);
      else liked.delete(item);
      update();
    });
    return element("li", {}, element("label", {}, box, element("span", {}, ...titled(film))));
  });
  find("list").replaceChildren(...rows);
  find("genre").append(...[...new Set(films.map((film) => film.genre))].sort().map((genre) => new Option(genre)));
  const filter = () => {
    const [text, genre] = [find("search").value.trim().toLowerCase(), find("genre").selectedOptions[0].value];
    films.forEach((film, item) => {
      rows[item].hidden = Boolean((genre && film.genre !== genre) || !film.title.toLowerCase().includes(text));
    });
    find("none").hidden = rows.some((row) => !row.hidden);
  };
  find("search").addEventListener("input", filter);
  find("genre").addEventListener("change", filter);
  filter(); // by what was typed before the films were there
  update();
}

/** Forgets the likes. */
export function forgetLikes() {
  localStorage.removeItem(KEY);
}
