/**
 * Exact samplers, in whole numbers only. Beside it in Python: hubbub/primitives/samplers.py, where the proofs are.
 */
import type { Coins, WordCoins } from "./coins.js";
import { bigOf } from "./siphash.js";

/** A pool without digits; a digit is 8 random bits, and a pool holds some of them below a first 1. */
export const EMPTY = 1n;
/** Denominators from here on leave no room for a digit in a 64-bit number. */
const WIDE = 1n << 54n;

/** Values in [-1, 1] are held as whole numbers in units of 2^-30. */
export const GRID = 1 << 30;

/** The least 2^k - 1 that is not below a number of at most 64 bits. */
function fill(number: bigint): bigint {
  let mask = number;
  for (const shift of [1n, 2n, 4n, 8n, 16n, 32n]) mask |= mask >> shift;
  return mask;
}

/** A uniform number of 0 .. bound - 1 as `below` finds it; what is left of its words goes to the pool. */
export function pooledBelow(tape: WordCoins, pool: bigint, bound: bigint): [bigint, bigint] {
  const mask = fill(bound - 1n);
  let left = pool;
  while (true) {
    const drawn = bigOf(tape.word());
    if (mask < 1n << 24n && left < 1n << 22n) left = (left << 40n) | (drawn >> 24n);
    else if (mask < 1n << 40n && left < 1n << 38n) left = (left << 24n) | (drawn >> 40n);
    if ((drawn & mask) < bound) return [drawn & mask, left];
  }
}

/** Whether a uniform number of [0, 1) is below numerator / denominator, from as many of its digits as that takes. */
export function pooledCoin(
  tape: WordCoins,
  pool: bigint,
  numerator: bigint,
  denominator: bigint,
): [boolean, bigint] {
  if (numerator <= 0n || numerator >= denominator) return [numerator > 0n, pool];
  if (denominator >= WIDE) return [tape.chance(numerator, denominator), pool];
  let left = pool;
  let rest = numerator;
  while (rest > 0n) {
    if (left === EMPTY) left = (bigOf(tape.word()) & 0xffffffffffffffn) | (1n << 56n);
    rest = (rest << 8n) - (left & 255n) * denominator;
    left >>= 8n;
    if (rest < 0n || rest >= denominator) return [rest > 0n, left];
  }
  return [false, left];
}

/** True with probability exp(-numerator / denominator), for 0 <= numerator <= denominator; and the pool. */
function acceptExp(
  tape: Coins,
  pool: bigint,
  numerator: bigint,
  denominator: bigint,
  first = 1n,
): [boolean, bigint] {
  let left = pool;
  for (let k = first; ; k++) {
    let again: boolean;
    [again, left] = tape.coin(left, numerator, denominator * k);
    if (!again) return [k % 2n === 1n, left];
  }
}

/** acceptExp of 1, with its first twelve coins in one. */
function acceptInverseE(tape: Coins, pool: bigint): [boolean, bigint] {
  let [flipped, left] = tape.coin(pool, 176214840n, 479001600n);
  if (flipped) return [true, left];
  [flipped, left] = tape.coin(left, 1n, 479001600n - 176214840n);
  return flipped ? acceptExp(tape, left, 1n, 1n, 13n) : [false, left];
}

/** value + discrete Laplace noise of scale numerator / denominator, clamped to [-limit, limit]. */
export function sampleClampedLaplace(
  tape: Coins,
  value: bigint,
  numerator: bigint,
  denominator: bigint,
  limit: bigint,
): bigint {
  let pool = EMPTY;
  while (true) {
    let [u, accepted, v, negative] = [0n, false, -1n, false];
    [u, pool] = tape.draw(pool, numerator);
    [accepted, pool] = acceptExp(tape, pool, u, numerator);
    if (!accepted) continue;
    while (accepted) {
      v++;
      [accepted, pool] = acceptInverseE(tape, pool);
    }
    const magnitude = (u + numerator * v) / denominator;
    [negative, pool] = tape.coin(pool, 1n, 2n);
    if (negative && magnitude === 0n) continue;
    return clip(negative ? value - magnitude : value + magnitude, limit);
  }
}

/** The number, or the nearest one in [-limit, limit]. */
export function clip<T extends number | bigint>(value: T, limit: T): T {
  return value > limit ? limit : value < -limit ? (-limit as T) : value;
}

/** value / step, rounded up or down so that the mean is exact; and the pool. */
export function rounded(tape: Coins, pool: bigint, value: bigint, step: bigint): [bigint, bigint] {
  const over = ((value % step) + step) % step;
  const [up, left] = tape.coin(pool, over, step);
  return [(value - over) / step + (up ? 1n : 0n), left];
}

/** +1 or -1 with mean exactly numerator / denominator. */
export function randomSign(tape: Coins, numerator: number, denominator: number): number;
export function randomSign(tape: Coins, numerator: bigint, denominator: bigint): number;
export function randomSign(tape: Coins, numerator: number | bigint, denominator: number | bigint): number {
  if (numerator === denominator) return 1;
  if (numerator === -denominator) return -1;
  const [a, b] = [numerator as number, denominator as number];
  return tape.chance(b + a, b + b) ? 1 : -1;
}

/** `truth` with weight `favoured`, anything else with weight `other`; truth < 0: anything alike. */
export function randomizedResponse(
  tape: Coins,
  truth: number,
  outcomes: number,
  favoured: bigint,
  other: bigint,
): number {
  const total = favoured + BigInt(outcomes - 1) * other;
  return truth >= 0 && tape.chance(favoured - other, total) ? truth : tape.below(outcomes);
}

/** The n-th number (from 0) that is not among `taken`, which are all different. */
export function nthOther(n: number, taken: readonly number[]): number {
  let place = n;
  for (let last = -1; place !== last; ) {
    last = place;
    place = n;
    for (const one of taken) if (one <= last) place++;
  }
  return place;
}
