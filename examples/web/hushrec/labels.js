/** Scores of items that a model does not know, from the labels of the catalogue: client_sdk/training/labels.py. */

const MOST = 2048;
const RIDGE = 10;

/** The numbers of each item's labels, of those that two items or more have, and how many these are. */
export function numbered(labels) {
  const counts = new Map();
  for (const own of labels) for (const label of own) counts.set(label, (counts.get(label) ?? 0) + 1);
  const order = ([one, a], [other, b]) => b - a || (points(one) < points(other) ? -1 : 1);
  const shared = [...counts].filter(([, count]) => count > 1).sort(order).slice(0, MOST);
  const numbers = new Map(shared.map(([label], number) => [label, number]));
  const ofItems = labels.map((own) => own.flatMap((label) => numbers.get(label) ?? []).sort((a, b) => a - b));
  return { ofItems, count: numbers.size };
}

/** Code points with a fixed width, so that texts compare by them. */
const points = (text) => [...text].map((one) => one.codePointAt(0).toString(16).padStart(6, "0")).join("");

/** x of A x = b for a symmetric positive definite A, a list of rows, by Cholesky's decomposition. Changes both. */
function solved(a, b) {
  const n = b.length;
  for (let i = 0; i < n; i++) {
    for (let j = 0; j <= i; j++) {
      let rest = a[i][j];
      for (let k = 0; k < j; k++) rest -= a[i][k] * a[j][k];
      a[i][j] = i === j ? Math.sqrt(rest) : rest / a[j][j];
    }
    let rest = b[i];
    for (let k = 0; k < i; k++) rest -= a[i][k] * b[k];
    b[i] = rest / a[i][i];
  }
  for (let i = n - 1; i >= 0; i--) {
    let rest = b[i];
    for (let k = i + 1; k < n; k++) rest -= a[k][i] * b[k];
    b[i] = rest / a[i][i];
  }
  return b;
}

/** The scores of all items: those given of the `known` ones, predictions for the others that have labels. */
export function completed(scores, known, labels) {
  const { ofItems, count } = numbered(labels);
  const items = scores.flatMap((_, item) => (known[item] ? [item] : []));
  if (!items.length || items.length === scores.length) return [...scores];
  const both = Array.from({ length: count }, () => new Float64Array(count));
  const right = new Float64Array(count);
  for (const item of items) {
    for (const one of ofItems[item]) {
      right[one] += scores[item];
      for (const other of ofItems[item]) both[one][other] += 1;
    }
  }
  const mean = both.map((row, label) => row[label] / items.length);
  const whole = items.reduce((sum, item) => sum + scores[item], 0);
  both.forEach((row, one) => mean.forEach((x, other) => (row[other] -= items.length * mean[one] * x)));
  mean.forEach((x, label) => {
    both[label][label] += RIDGE;
    right[label] -= whole * x;
  });
  const weights = solved(both, right);
  const start = whole / items.length - mean.reduce((sum, x, label) => sum + x * weights[label], 0);
  const predicted = (item) => Math.fround(ofItems[item].reduce((sum, label) => sum + weights[label], start));
  return scores.map((score, item) => (known[item] || !ofItems[item].length ? score : predicted(item)));
}
