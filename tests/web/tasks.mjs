/** A task as the server states it, once over one-shot sums and once over masked ones. */

import { POLICY } from "../../examples/web/hushrec/terms.js";

/** What the clients of the tests agree to: the models of these servers are not the subject. */
export const AGREED = { ...POLICY, trustModels: true };

const RECIPE = {
  items: 60,
  dim: 8,
  clip: 4.0,
  row_clip: 1.0,
  item_bias: "none",
  count_sums: 1,
  server_rate: 1.0,
  learning_rate: null,
  epochs: null,
  batch_size: null,
  weight_decay: null,
  negatives: null,
  start_from: null,
  start_weight: 16.0,
  normalise: null,
  reveal_touched: false,
  rank: 4,
};

function task(id, organiser, mechanism, parameters, scale, waiting_for, plan) {
  const segment = { name: "update", length: 240, clip: 4, integral: false, sum_bound: null, scale };
  const layout = { length: 240, chosen: 0, blocks: [{ name: "items", count: 1, segments: [segment] }] };
  const scales = { "items/update": scale };
  const whole = { mechanism, ...parameters, security_bits: 128, max_contributions: 24, ...plan, segment_scales: scales };
  return {
    task_id: id,
    name: "films",
    state: "open",
    recipe: { name: "colr", parameters: { items: 60, dim: 8, rank: 4 } },
    mechanism: { name: mechanism, parameters: {} },
    schedule: {
      rounds: 5,
      cohort_size: 24,
      min_clients: 10,
      start_clients: 21,
      sampling: "uniform",
      collect_seconds: 600.0,
      stage_seconds: 60.0,
      min_difference: null,
      max_failed_rounds: 5,
    },
    seed: "A".repeat(43),
    data_set: null,
    organiser: { key: organiser, scope: "films" },
    evaluation: null,
    best_round: null,
    plan: whole,
    resolved: {
      recipe: { name: "colr", parameters: { ...RECIPE } },
      mechanism: { name: mechanism, parameters: { ...parameters } },
      main_sum: { sum_index: 1, device_group: 0, layout, plan: structuredClone(whole), state_bytes: 1920 },
    },
    opened_by: "anyone",
    members: 0,
    keyed_members: 0,
    able_members: [0],
    completed_rounds: 0,
    failed_rounds: 0,
    waiting_for,
    warnings: [],
  };
}

const SAFE = { mode: "semi-malicious", corrupt: 0.05, dropout: 0.1, sigma: 64, eta: 30 };
export const MASKED = task("t_68e8098766bcf017be38", "WVEThN0e7mBTVLLLiiC3asXFjHpL1WmBqyrZTvv3XIk", "masked", { bits: 32, ...SAFE }, 2 ** 24, null, {
  neighbourhood: {
    ...SAFE,
    clients: 24,
    degree: 6,
    threshold: 4,
    log2_disconnected: null,
    log2_too_many_corrupt: null,
    log2_too_few_survivors: null,
  },
  bytes_per_value: 4.0,
  aggregate_bytes: 960,
  predicted_error: 7.152559931000724e-07,
  segment_errors: { "items/update": 7.152559931000724e-07 },
});

const SMALL = { bits: 28, committee: 5, corrupt: 1 };
const MISSING = "the committee: 0 of 5 members have published keys for round 1";
export const ONESHOT = task("t_58b4b150e2b1faae91af", "dRx2wgl8TarjdDfry-uxBCcrjtsZEpLpYkY26dkSqTk", "oneshot", SMALL, 2 ** 20, MISSING, {
  threshold: 4,
  degree: 4096,
  primes: [4294828033, 4294729729, 4294483969],
  log2_q: 96,
  values_per_coefficient: 3,
  bytes_per_value: 4.05,
  ticket_bytes: 87536,
  upload_bytes: 88508,
  aggregate_bytes: 840,
  predicted_error: 1.1444092052670385e-05,
  segment_errors: { "items/update": 1.1444092052670385e-05 },
});
