/** FAIR: hashed subspaces, contributions, turns of sums, states and views (docs/wire/states.md). p: parameters with defaults. */

import { concat, exact, littleEndian, Reader } from "./codec.js";
import { digest } from "./domain.js";
import { CodecError, ParameterError } from "./errors.js";
import { toFloats } from "./plain.js";
import { normals, uniforms } from "./random.js";
import { finiteFloats, weightOf } from "./states.js";

const MASK = (1n << 64n) - 1n;
const CHUNK = 2 ** 16;
const TABLES = ["gmf", "mlp"];
const round32 = Math.fround;
const held = (x, clip) => Math.max(-clip, Math.min(clip, x));

const elementsOf = (p) => p.items * p.dim;
export const layersOf = (p) => 2 * p.dim * p.dim + 3 * p.dim;

/** m of each group. */
export function bucketsOf(p) {
  const most = Math.max(...p.capacities);
  return p.capacities.map((capacity) => (capacity ? Math.floor(elementsOf(p) / 2 ** most) * 2 ** (most - capacity) : elementsOf(p)));
}

/** Places and signs of all elements of a table among m values. */
export async function hashOf(p, seed, table, m) {
  const n = elementsOf(p);
  const key = new Reader(await digest("fair hash", seed, table)).big(8);
  const words = Array.from({ length: n }, (_, a) => {
    let z = (key + BigInt(a + 1) * 0x9e3779b97f4a7c15n) & MASK;
    z = ((z ^ (z >> 30n)) * 0xbf58476d1ce4e5b9n) & MASK;
    z = ((z ^ (z >> 27n)) * 0x94d049bb133111ebn) & MASK;
    return z ^ (z >> 31n);
  });
  if (m === n) return { key, m, places: words.map((_, a) => a), signs: words.map(() => 1) };
  return { key, m, places: words.map((w) => Number((w >> 1n) % BigInt(m))), signs: words.map((w) => (w & 1n ? 1 : -1)) };
}

export function project({ m, places, signs }, theta) {
  const [totals, counts] = [new Array(m).fill(0), new Array(m).fill(0)];
  theta.forEach((x, a) => {
    totals[places[a]] += signs[a] * x;
    counts[places[a]]++;
  });
  return totals.map((x, j) => round32(x / Math.max(1, counts[j])));
}

export async function initial(p, taskSeed) {
  const tables = [];
  for (const table of TABLES) {
    const values = [];
    for (let at = 0; at < elementsOf(p); at += CHUNK) {
      const own = await digest("fair initial table", taskSeed, table, at);
      const drawn = await normals(own, "values", Math.min(CHUNK, elementsOf(p) - at));
      values.push(...drawn.map((x) => round32(0.01 * x)));
    }
    tables.push(values);
  }
  const square = 2 * p.dim * p.dim;
  const w = (await uniforms(taskSeed, "fair initial layers", square + 2 * p.dim)).map((u) => 2 * u - 1);
  const inner = w.slice(0, square).map((x) => round32(Math.sqrt(6 / (3 * p.dim)) * x));
  const outer = w.slice(square).map((x) => round32(Math.sqrt(6 / (2 * p.dim + 1)) * x));
  const layers = [...inner, ...new Array(p.dim).fill(0), ...outer];
  return { sums: 0, seed: await digest("fair subspaces", taskSeed), tables, layers, given: [] };
}

/** places, changes: in both tables of the group of sum `index`, one behind the other. layers: the change of all layers. */
export function contribution(p, index, { places, changes, dense, interactions }) {
  const m = bucketsOf(p)[(index - 1) % p.capacities.length];
  const { weight, sent } = weightOf(p, interactions);
  const vector = new Array(2 * m).fill(0);
  places.forEach((place, i) => (vector[place] = weight * held(changes[i], p.clip)));
  return [...vector, ...dense.map((x) => weight * held(x, p.clip)), ...sent];
}

export async function absorb(p, state, index, total, contributions) {
  if (index <= state.sums) throw new ParameterError(`sum ${index} does not follow a model of sum ${state.sums}`);
  let before = state;
  while (before.sums + 1 < index) before = await withoutSum(p, before, before.sums + 1);
  return withSum(p, before, index, p.max_interactions ? total : [...total, contributions]);
}

/** The state after an abandoned sum, which counts as zeros. */
function withoutSum(p, state, index) {
  const [group, groups] = [state.given.length, p.capacities.length];
  if (group + 1 === groups && !state.given.flat().some((x) => x !== 0)) return { ...state, sums: index, given: [] };
  return withSum(p, state, index, new Array(2 * bucketsOf(p)[group] + layersOf(p) + 1).fill(0));
}

async function withSum(p, state, index, total) {
  const given = [...state.given, total.map(round32)];
  if (given.length < p.capacities.length) return { ...state, sums: index, given };
  const weights = given.map((sum) => sum.at(-1));
  const all = weights.reduce((sum, x) => sum + x, 0);
  if (Math.min(...weights) < 0 || !(all > 0)) throw new ParameterError("a turn of sums needs a positive weight");
  const buckets = bucketsOf(p);
  const size = layersOf(p);
  const tables = [];
  for (const [number, table] of TABLES.entries()) {
    const theta = state.tables[number];
    const recovered = new Array(theta.length).fill(0);
    const own = new Array(theta.length).fill(0);
    let kept = p.mixing === "add" ? all : 0;
    for (const [group, m] of buckets.entries()) {
      const change = given[group].slice(number * m, (number + 1) * m);
      if (m === theta.length) {
        change.forEach((x, a) => (own[a] += x));
        if (p.mixing === "replace") kept = weights[group];
        continue;
      }
      const space = await hashOf(p, state.seed, table, m);
      const psi = p.mixing === "replace" ? project(space, theta) : change.map(() => 0);
      const sent = change.map((x, j) => weights[group] * psi[j] + x);
      space.places.forEach((j, a) => (recovered[a] += space.signs[a] * sent[j]));
    }
    tables.push(theta.map((x, a) => round32((kept * x + own[a] + round32(recovered[a])) / all)));
  }
  const moved = given.map((sum) => sum.slice(-1 - size, -1));
  const layers = state.layers.map((x, i) => round32(x + moved.reduce((sum, change) => sum + change[i], 0) / all));
  return { sums: index, seed: state.seed, tables, layers, given: [] };
}

/** What the devices of a group download: both tables projected. */
export async function view(p, state, group) {
  const m = bucketsOf(p)[group];
  const spaces = await Promise.all(TABLES.map((table) => hashOf(p, state.seed, table, m)));
  return { ...state, tables: state.tables.map((table, i) => project(spaces[i], table)), given: [] };
}

/** The bytes of a state or of a view. */
export const encode = ({ sums, seed, tables, layers, given }) =>
  concat(littleEndian(sums, 4), seed, toFloats([...tables.flat(), ...layers, ...given.flat()]));

/** group: of a view; null for the whole state. */
export function decode(p, round, body, group = null) {
  if (body.length < 4) throw new CodecError("a model of FAIR has at least 4 bytes");
  const sums = new Reader(body).number(4);
  if (sums > round) throw new CodecError("a model claims more sums than its round");
  const buckets = bucketsOf(p);
  const m = group === null ? elementsOf(p) : buckets[group];
  const turn = group === null ? buckets.slice(0, sums % buckets.length) : [];
  const lengths = [m, m, layersOf(p), ...turn.map((one) => 2 * one + layersOf(p) + 1)];
  exact(body, 36 + 4 * lengths.reduce((sum, length) => sum + length, 0), "a model of FAIR");
  const values = finiteFloats(body.slice(36));
  const parts = lengths.map((length) => values.splice(0, length));
  return { sums, seed: body.slice(4, 36), tables: parts.slice(0, 2), layers: parts[2], given: parts.slice(3) };
}
