/** Vectors of states: every recipe's contributions, sums and encoded states. */

import * as fair from "../../examples/web/hushrec/fair.js";
import * as privirec from "../../examples/web/hushrec/privirec.js";
import * as recipes from "../../examples/web/hushrec/recipes.js";
import * as states from "../../examples/web/hushrec/states.js";
import { fromBase64Url, fromHex, toHex } from "../../examples/web/hushrec/codec.js";
import { near, refused, same } from "./checks.mjs";

const DEFAULTS = {
  arrays: {
    ...{ clip: 1, clips: {}, l2_clip: null, rows: [], max_weight: null, optimiser: "mean", server_rate: 1, momentum: 0.9 },
    ...{ second_momentum: 0.99, adaptivity: 1e-3, std: 0.02, stds: {} },
  },
  fair: { mixing: "replace" },
  colr: { row_clip: 1, server_rate: 1 },
  fedmf: { row_clip: 2, server_rate: 1 },
  pfedclr: { row_clip: 2, start_scale: 1, server_rate: 1 },
  privirec: { blocks: 1, oversampling: 0, rayleigh_ritz: false, tolerance: null, user_exponent: 0.5, krylov: false, min_owners: 5 },
  scolr: { row_clip: 1, server_rate: 1 },
  "privirec-k": { oversampling: 0, rayleigh_ritz: false, tolerance: null, user_exponent: 0.5, krylov: false, min_owners: 5 },
  svd: { row_clip: 2, server_rate: 1 },
  topk: { row_clip: 2, support: "shared", support_from: "aggregate", error_feedback: false, server_rate: 1, count_sums: 1 },
};

/** The name, the parameters with defaults, and the seed of a case's task. */
function taskOf({ task: { recipe, seed } }) {
  return { name: recipe.name, p: { ...DEFAULTS[recipe.name], ...recipe.parameters }, seed: fromBase64Url(seed) };
}

const flat = (value) => [value].flat(Infinity);

/** All numbers of a state, for comparison. */
const numbers = (state) =>
  Object.values(state).flatMap((value) => (value instanceof Uint8Array ? [...value] : flat(value).filter((x) => x !== null)));

function nearState(found, expected, what) {
  same(Object.keys(found).sort(), Object.keys(expected).sort(), what);
  near(numbers(found), numbers(expected), what);
}

/** Plays a case: contributions, totals and states. one: {initial, decode, encode, send(state, sum, client), absorb(state, sum)}. */
async function play(shown, one, what) {
  let state = await one.initial();
  nearState(state, one.decode(fromHex(shown.initial), 0), what);
  for (const sum of shown.sums) {
    for (const client of sum.clients) {
      const blocks = await one.send(state, sum, client);
      if (blocks) near(flat(blocks), flat(client.blocks), `${what}, a contribution`);
    }
    const found = await one.absorb(state, sum);
    state = one.decode(fromHex(sum.state), sum.round); // errors in the last bits do not add up
    nearState(found, state, `${what}, round ${sum.round}`);
    same(toHex(one.encode(state)), sum.state, what);
  }
  for (const { what: why, round, state: body, error } of shown.refused) {
    await refused(error, () => one.decode(fromHex(body), round), `${what}, ${why}`);
  }
  return state;
}

const factors = (p) => ({
  decode: (body) => ({ factors: states.decodeFactors(p, body) }),
  encode: ({ factors: flatFactors }) => recipes.encodeState({ factors: [flatFactors], counts: null }),
});

export const RUNNERS = {
  async "state_arrays.json"({ cases, refused_updates }) {
    for (const shown of cases) {
      const { p, seed } = taskOf(shown);
      const flatten = (update) => Object.fromEntries(Object.entries(update).map(([name, value]) => [name, flat(value)]));
      await play(shown, {
        initial: () => states.arraysInitial(p, seed),
        decode: (body) => states.decodeArrays(p, body),
        encode: states.encodeArrays,
        send(_, __, client) {
          const found = states.arraysContribution(p, flatten(client.update), client.weight);
          same(found.clipped, client.clipped);
          near(found.scaled, client.scaled);
          return found.vector;
        },
        absorb: (state, { total, contributions }) => states.arraysAbsorb(p, state, total, contributions),
      }, `arrays ${p.optimiser}`);
    }
    same(refused_updates.every(({ error }) => error === "ParameterError"), true); // an application's own mistakes
  },

  async "state_svd.json"({ cases }) {
    for (const shown of cases) {
      const { p, seed } = taskOf(shown);
      await play(shown, {
        ...factors(p),
        initial: async () => ({ factors: await states.svdInitial(p, seed) }),
        send: (_, __, client) => states.svdContribution(p, client),
        absorb: ({ factors: before }, { total, contributions }) => ({ factors: states.svdAbsorb(p, before, total, contributions) }),
      }, "svd");
    }
  },

  async "state_pfedclr.json"({ cases, user_factor, basis, refused_sums }) {
    for (const shown of cases) {
      const { p, seed } = taskOf(shown);
      const start = await states.sharedStart(p);
      near(start.user, user_factor);
      near(start.basis, basis);
      const last = await play(shown, {
        ...factors(p),
        initial: async () => ({ factors: await states.pfedclrInitial(p, seed) }),
        send: (_, __, client) => states.pfedclrContribution(p, client, client.interactions),
        absorb: ({ factors: before }, { total, contributions }) => ({ factors: states.pfedclrAbsorb(p, before, total, contributions) }),
      }, "pfedclr");
      for (const { total, error, what } of refused_sums) {
        await refused(error, () => states.pfedclrAbsorb(p, last.factors, total), what);
      }
    }
  },

  async "state_topk.json"({ cases }) {
    for (const shown of cases) {
      const { p, seed } = taskOf(shown);
      await play(shown, {
        initial: () => states.topkInitial(p, seed),
        decode: (body) => states.decodeTopk(p, body),
        encode: states.encodeTopk,
        send: (state, _, client) => (client.rows ? states.topkContribution(p, state, client) : client.blocks),
        absorb: async (state, { round, total, contributions }) =>
          states.topkAbsorb(p, state, round, total, contributions, await recipes.roundSeed(seed, round)),
      }, `topk ${p.support} ${p.support_from}`);
    }
  },

  async "state_rfrec.json"({ cases, coins }) {
    for (const shown of cases) {
      const { name, p, seed } = taskOf(shown);
      const last = await play(shown, {
        initial: () => states.rfrecInitial(name, p, seed),
        decode: (body, round) => states.decodeRfrec(name, p, round, body),
        encode: states.encodeRfrec,
        send(state, _, client) {
          if (client.rated) return [...client.rated, ...client.above];
          return flat(client.own).map((x, i) => Math.max(-p.clip, Math.min(p.clip, x - state.average[i])));
        },
        absorb: (state, { round, total, contributions }) => states.rfrecAbsorb(name, p, state, round, total, contributions),
      }, name);
      for (const { round, error, what } of shown.refused_sums) {
        await refused(error, () => states.rfrecAbsorb(name, p, last, round, [], 3), what);
      }
    }
    for (const { parameters, probability, moves, coins: own, ...expected } of coins) {
      same(await states.stretches(fromHex(own), parameters.iterations, probability, moves), expected);
    }
  },

  async "state_fair.json"({ cases }) {
    for (const shown of cases) {
      const { p, seed } = taskOf(shown);
      same(fair.bucketsOf(p), shown.buckets);
      const { seed: own } = await fair.initial(p, seed);
      for (const { table, key, m, places, signs } of shown.hashes) {
        const found = await fair.hashOf(p, own, table, m);
        same([String(found.key), found.places, found.signs], [key, places, signs]);
      }
      const checkViews = async (state, views, round) => {
        for (const [group, body] of views.entries()) {
          nearState(await fair.view(p, state, group), fair.decode(p, round, fromHex(body), group), "a view");
        }
      };
      await checkViews(await fair.initial(p, seed), shown.initial_views, 0);
      const last = await play(shown, {
        initial: () => fair.initial(p, seed),
        decode: (body, round) => fair.decode(p, round, body),
        encode: fair.encode,
        send: (_, { round }, client) => fair.contribution(p, round, client),
        async absorb(state, { round, total, contributions, views }) {
          const found = await fair.absorb(p, state, round, total, contributions);
          await checkViews(found, views, round);
          return found;
        },
      }, `fair ${p.mixing}`);
      await refused(shown.refused_turn.error, async () => {
        let state = last;
        for (let i = 0; i < shown.refused_turn.rounds; i++) {
          const m = shown.buckets[state.sums % shown.buckets.length];
          state = await fair.absorb(p, state, state.sums + 1, new Array(2 * m + fair.layersOf(p) + 1).fill(0), 0);
        }
      });
    }
  },

  async "state_privirec.json"({ cases, refused_sums }) {
    for (const { case: at, round, total, contributions, error, what } of refused_sums) {
      const { p, seed } = taskOf(cases[at]);
      const state = privirec.decode(p, round - 1, fromHex(cases[at].sums[round - 2].state));
      await refused(error, async () => privirec.absorb(p, state, round, total, contributions, await recipes.roundSeed(seed, round)), what);
    }
    for (const shown of cases) {
      const { name, p, seed } = taskOf(shown);
      await play(shown, {
        initial: privirec.empty,
        decode: (body, round) => privirec.decode(p, round, body),
        encode: privirec.encode,
        send(state, { round, kind }, client) {
          same(privirec.kindOf(p, round), kind);
          return privirec.contribution(p, state, round, client.items, client.drawn, client.times);
        },
        async absorb(state, { round, total, contributions, next_size }) {
          const after = await privirec.absorb(p, state, round, total, contributions, await recipes.roundSeed(seed, round));
          same(privirec.sizeAfter(p, after), next_size);
          return after;
        },
      }, name);
    }
  },

  async "state_evaluation.json"({ cases, layouts }) {
    for (const shown of cases) {
      const { name, p, seed } = taskOf(shown);
      const { evaluation, schedule } = shown.task;
      const { items, dim } = p;
      const [size, count] = [shown.initial.length / 2, shown.measures.length];
      const mainSum = p.item_bias === "counts" ? 2 : 1;
      same(size, 4 * items * dim + (mainSum === 2 ? 4 * (items + 1) : 0) + (name === "rfrec" ? 4 : 0));
      const named = layouts.filter(({ recipe }) => recipe === name);
      const constants = mainSum === 2 ? count : 0;
      const split = (body, round) => states.splitPoints(body, size, count, schedule.rounds, round, constants, Boolean(evaluation.gate));
      const decode = (body, round) => {
        const { model, adopted } = split(body, round);
        if (adopted) recipes.decodeState(adopted, items, dim, mainSum === 2);
        return name === "rfrec" ? states.decodeRfrec(name, p, round, model) : recipes.decodeState(model, items, dim, mainSum === 2);
      };
      const absorb = async (state, total, round, index, contributions) => {
        if (name === "rfrec") return states.rfrecAbsorb(name, p, state, index, total, contributions);
        if (index < mainSum) return recipes.absorbCounts(state, total, contributions);
        return recipes.absorb(name, p, state, total, contributions, await recipes.roundSeed(seed, round));
      };
      const points = [];
      let [model, index, popularity, adopted] = [decode(fromHex(shown.initial), 0), 0, [], null];
      for (const { round, clients, total, measures, state } of shown.sums) {
        const own = states.measuresIn(evaluation, schedule.rounds, mainSum, round);
        same(own, measures);
        same(named[round - 1].segments.flat().includes("measured"), own);
        const after = decode(fromHex(state), round);
        if (own) {
          const sums = clients.map(({ measured }) => [1, ...measured]);
          clients.forEach(({ blocks }, i) => same(flat(blocks), sums[i]));
          const [counted, ...values] = sums[0].map((_, i) => sums.reduce((all, row) => all + row[i], 0));
          same(total, [counted, ...values]);
          if (!points.length) popularity = values.slice(count);
          points.push({ modelRound: round - 1, round, clients: counted, sums: values.slice(0, count) });
          if (evaluation.gate && adopted && states.lastAdopted(points, evaluation.gate, name === "rfrec") !== points.at(-1)) model = adopted;
          same(numbers(after), numbers(model));
          adopted = evaluation.gate ? model : null;
        } else {
          index += 1;
          near(numbers(await absorb(model, total, round, index, clients.length)), numbers(after), name);
          model = after;
        }
        const found = split(fromHex(state), round);
        same([found.points, found.popularity], [points, popularity]);
        const start = points.length ? size + 8 * constants : size;
        const last = adopted ? toHex(recipes.encodeState(adopted)) : "";
        same(points.map((point) => toHex(states.encodePoint(point))).join("") + last, state.slice(2 * start));
      }
      for (const { what, round, state, error } of shown.refused) await refused(error, () => decode(fromHex(state), round), what);
    }
  },
};
