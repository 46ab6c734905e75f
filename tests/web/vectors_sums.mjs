/** Vectors of plain, Paillier and CKKS sums, of recipes and of plans. */

import * as ckks from "../../examples/web/hushrec/ckks.js";
import * as codec from "../../examples/web/hushrec/codec.js";
import * as fixed from "../../examples/web/hushrec/fixed_point.js";
import * as hood from "../../examples/web/hushrec/neighbourhood.js";
import * as paillier from "../../examples/web/hushrec/paillier.js";
import * as plain from "../../examples/web/hushrec/plain.js";
import * as random from "../../examples/web/hushrec/random.js";
import * as recipes from "../../examples/web/hushrec/recipes.js";
import { concat, fromHex, toHex } from "../../examples/web/hushrec/codec.js";
import { digest } from "../../examples/web/hushrec/domain.js";
import { near, refused, same } from "./checks.mjs";

export const RUNNERS = {
  async "plain.json"({ fold, check }) {
    for (const { contributions, values, aggregate } of fold) {
      const total = [new Array(3).fill(0), new Array(3).fill(0)];
      contributions.forEach(({ route, body }, at) => {
        same(toHex(plain.seal(values[at])), body);
        const sent = plain.fromFloats(fromHex(body));
        route.forEach((targets, first) => {
          for (const target of targets) for (let i = 0; i < 3; i++) total[target][i] += sent[3 * first + i];
        });
      });
      same(toHex(plain.toFloats(total.flat())), aggregate);
    }
    const bounds = [0.5, 0.5, 1, 0.5, 0.5, 1];
    for (const { body, error, what } of check) await refused(error, () => plain.check(fromHex(body), bounds), what);
  },

  async "chosen.json"({ contributions }) {
    for (const { numbers, values, body } of contributions) same(toHex(plain.seal([values], numbers)), body);
  },

  async "ckks_wire.json"({ seeded, out_of_range }) {
    for (const { set, modulus, residues, seeds, body } of seeded) {
      same(String(ckks.SETS[set].modulus), modulus);
      const planes = ckks.encodePlanes(residues.flat().map(BigInt), set);
      same(toHex(planes) + seeds.join(""), body);
      same(ckks.decodePlanes(planes, set).map(String), residues.flat());
    }
    for (const { set, body, ciphertext } of out_of_range) {
      same(ckks.firstOutOfRange(ckks.decodePlanes(fromHex(body), set), set, 8), ciphertext);
    }
  },

  async "ckks_fold.json"({ fold }) {
    for (const { set, modulus, degree, rules, contribution_digests, partial_digest, count } of fold) {
      const size = 2 * degree;
      const sums = [0, 1].map(() => new Array(size).fill(0n));
      for (const [at, { route, factor, offset }] of rules.entries()) {
        const residues = Array.from({ length: size * route.length }, (_, i) => {
          const value = BigInt(factor) * BigInt(i + 1) * 2654435761n + BigInt(offset);
          return ((value % BigInt(modulus)) + BigInt(modulus)) % BigInt(modulus);
        });
        same(toHex(await digest("vector", ckks.encodePlanes(residues, set))), contribution_digests[at]);
        route.forEach((targets, first) => {
          for (const target of targets) ckks.addResidues(sums[target], residues.slice(first * size, (first + 1) * size), set);
        });
      }
      const partial = concat(fromHex(count), ckks.encodePlanes(sums.flat(), set));
      same(toHex(await digest("vector", partial)), partial_digest);
    }
  },

  async "paillier.json"({ p, q, scale, slots, contributions, partial, opened }) {
    const [P, Q] = [BigInt("0x" + p), BigInt("0x" + q)];
    const n = P * Q;
    const segments = [
      { length: 53, clip: 0.5, integral: false },
      { length: 2, clip: 3, integral: true },
    ];
    const own = paillier.slotsOf(segments, 2048, 32, 60);
    same(own.map((slot) => slot.slice(0, 3)), slots);
    same(own[0][3], scale);
    const rows = own.at(-1)[0] + 1;
    const products = [0, 1].map(() => new Array(rows).fill(1n));
    for (const { route, values, plaintexts, r, body } of contributions) {
      const packed = values.flatMap((block) => paillier.packValues(block, own));
      same(packed.map(String), plaintexts);
      const ciphertexts = packed.map((m, i) => paillier.encrypt(m, BigInt("0x" + r[i]), n));
      same(toHex(paillier.encodeBody(n, ciphertexts, 2048)), body);
      same(paillier.decodeBody(fromHex(body), ciphertexts.length, 2048).ciphertexts.map(String), ciphertexts.map(String));
      route.forEach((targets, first) => {
        for (const target of targets) {
          for (let row = 0; row < rows; row++) {
            products[target][row] = (products[target][row] * ciphertexts[first * rows + row]) % (n * n);
          }
        }
      });
    }
    same(toHex(concat(codec.littleEndian(2, 8), paillier.encodeBody(n, products.flat(), 2048))), partial);
    const found = products.flatMap((block) => paillier.unpackValues(block.map((c) => paillier.decrypt(c, P, Q)), own, n));
    same(found, opened);
  },

  async "derived.json"({ task_seed, initial_factors, rank, dim, most_levels, rounds }) {
    const seed = fromHex(task_seed);
    near(await recipes.initialFactors(seed, 3, 4), initial_factors);
    for (const { number, seed: own, levels, projection } of rounds) {
      const found = await recipes.roundSeed(seed, number);
      same(toHex(found), own);
      near(await recipes.projection(found, rank, dim), projection);
      for (const [client, level] of Object.entries(levels)) same(await recipes.clientLevel(found, client, most_levels), level);
    }
  },

  async "absorbed.json"({ task_seed, cases }) {
    for (const { recipe, resolved: p, initial, sums, refused: wrong } of cases) {
      const { items, dim } = p;
      const open = (hex) => recipes.decodeState(fromHex(hex), items, dim, p.item_bias === "counts");
      let state = open(initial);
      near(state.factors, await recipes.initialFactors(fromHex(task_seed), items, dim));
      for (const { round, clients, total, state: after } of sums) {
        const seed = await recipes.roundSeed(fromHex(task_seed), round);
        for (const { client, items: touched, rows, blocks } of clients) {
          if (!rows) continue;
          const width = rows[0].length;
          if (recipe === "scolr") {
            const edges = recipes.levelEdges(p);
            same(width, edges[await recipes.clientLevel(seed, client, edges.length - 1)]);
          }
          same(recipes.blocksOf(recipe, p, { items: touched, rows }, width), blocks, recipe);
        }
        if (clients[0].rows) state = await recipes.absorb(recipe, p, state, total, clients.length, seed);
        else state = recipes.absorbCounts(state, total, clients.length);
        near(state.factors, open(after).factors, recipe);
        same([state.counts, state.clients], [open(after).counts, open(after).clients]);
        same(recipes.encodeState(open(after)).length, fromHex(after).length);
      }
      for (const { what, state: body, error } of wrong) await refused(error, () => open(body), what);
    }
  },

  async "layouts.json"({ cases }) {
    for (const { blocks, length, chosen } of cases) {
      same(blocks.flatMap((block) => block.segments).reduce((sum, segment) => sum + segment.length, 0), length);
      same(chosen <= blocks.length, true);
    }
  },

  async "supports.json"({ seed, first, renewed }) {
    for (const { units, kept, support } of first) {
      const drawn = await random.permutation(fromHex(seed), "first support", units);
      same(drawn.slice(0, kept).sort((a, b) => a - b), support);
    }
    for (const { units, support, strongest, next } of renewed) {
      const held = strongest.slice(0, Math.floor(support.length / 2));
      const others = (await random.permutation(fromHex(seed), "support", units)).filter((unit) => !held.includes(unit));
      same([...held, ...others.slice(0, support.length - held.length)].sort((a, b) => a - b), next);
    }
  },

  async "plans.json"({ layouts, cases }) {
    const blocks = { rows: ["items", "items"], "two blocks": ["a", "b"] };
    for (const { layout, mechanism, parameters, contributions, scales } of cases) {
      const found = {};
      layouts[layout].forEach((segment, at) => {
        const bits = parameters.bits ?? { masked: 32, oneshot: 28 }[mechanism];
        const scale = {
          plain: () => undefined,
          masked: () => fixed.segmentScale(bits, segment, contributions),
          oneshot: () => fixed.segmentScale(bits, segment, contributions),
          paillier: () => paillier.slotCode(segment, 32, contributions).scale,
          ckks: () => ckks.scaleOf(parameters.set ?? "standard", contributions, 2048) / segment.clip,
        }[mechanism]();
        if (scale) found[`${blocks[layout][at]}/${segment.name}`] = scale;
      });
      same(found, scales, mechanism);
    }
  },

  async "neighbourhoods.json"({ cases }) {
    for (const { clients, corrupt, dropout, mode, sigma, eta, error, ...expected } of cases) {
      const choose = () => hood.chooseNeighbourhood(clients, corrupt, dropout, mode, sigma, eta);
      if (error) await refused(error, choose);
      else same({ ...choose(), quorum: hood.quorum(corrupt, clients) }, expected);
    }
  },
};
