/** Sparse sums: noised sums of signed values. In Python: hubbub/mechanisms/sparse_sum.py, shared/clipped_walk.py. */
import { clip, EMPTY, GRID, randomSign, rounded } from "../samplers.js";
import type { HashedKernel, Shape } from "./shape.js";

export function sparseSum(shape: Shape, bins: number): HashedKernel {
  return shape.has("reach") ? walk(shape) : laplaceOnBins(shape, bins);
}

/** One clipped bin of exactly `limit` steps of +1 or -1. Reach < 0: Laplace; 0: one bit; else a favoured window. */
function walk(shape: Shape): HashedKernel {
  const [limit, largest, reach] = [shape.count("limit"), shape.count("clip"), Number(shape.big("reach"))];
  const [favoured, other] = shape.weights();
  const [numerator, denominator] = [shape.big("numerator"), shape.big("denominator")];
  const steps = shape.big("steps");
  return (coins, { values, sign }) => {
    let load = 0;
    values.forEach((value, j) => {
      load += sign[j] * randomSign(coins, value, GRID);
    });
    for (let j = values.length; j < limit; j++) load += randomSign(coins, 0, 1);
    load = clip(load, largest);
    let answer: number;
    if (reach < 0) {
      answer = Number(coins.clampedLaplace(BigInt(load), numerator, denominator, steps) + steps);
    } else if (reach === 0) {
      const lean = BigInt(load) * (favoured - other);
      answer = randomSign(coins, lean, BigInt(largest) * (favoured + other)) > 0 ? 1 : 0;
    } else {
      const [window, rest] = [2 * reach + 1, 2 * largest];
      const weight = BigInt(window) * favoured;
      if (coins.chance(weight, weight + BigInt(rest) * other)) {
        answer = load + largest + coins.below(window);
      } else {
        const place = coins.below(rest);
        answer = place >= load + largest ? place + window : place;
      }
    }
    return { numbers: [answer] };
  };
}

/** Laplace noise on every bin. */
function laplaceOnBins(shape: Shape, bins: number): HashedKernel {
  const [shrink, sumsFirst, most] = [shape.big("shrink"), shape.flag("sums_first"), shape.big("clip")];
  const [numerator, denominator] = [shape.big("numerator"), shape.big("denominator")];
  const [step, steps] = [shape.big("step"), shape.big("steps")];
  return (coins, { values, bucket, sign }) => {
    const loads = new Array<bigint>(bins).fill(0n);
    let pool = EMPTY;
    values.forEach((given, j) => {
      let value = BigInt(given);
      if (!sumsFirst) [value, pool] = rounded(coins, pool, value, shrink);
      loads[bucket[j]] += BigInt(sign[j]) * value;
    });
    const numbers = loads.map((sum) => {
      let load = sum;
      if (sumsFirst) [load, pool] = rounded(coins, pool, load, shrink);
      if (most >= 0n) load = clip(load, most);
      const noised = coins.clampedLaplace(load, numerator, denominator, step * steps);
      let number: bigint;
      [number, pool] = rounded(coins, pool, noised, step);
      return Number(number + steps);
    });
    return { numbers };
  };
}
