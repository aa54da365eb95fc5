/** Sketch response: favour the fullest buckets of a count sketch. In Python: hubbub/mechanisms/sketch_response.py. */
import type { Coins } from "../coins.js";
import { GRID, nthOther, randomSign } from "../samplers.js";
import type { HashedKernel, Shape } from "./shape.js";

export function sketchResponse(shape: Shape): HashedKernel {
  const [sided, signed] = [shape.flag("sided"), shape.flag("signed")];
  const [seeds, buckets, limit] = [shape.count("seeds"), shape.count("buckets"), shape.count("limit")];
  const pick = picker(shape, seeds * buckets, signed ? 2 : 1);
  return (coins, { values, bucket, sign }) => {
    const rounded = sided || signed ? values.map((value) => randomSign(coins, value, GRID)) : [];
    const total = new Map<number, number>(); // loads of the cells that were touched, in that order
    for (let row = 0; row < seeds; row++) {
      for (let j = 0; j < limit; j++) {
        let [cell, load] = [row * buckets, 1];
        if (j >= values.length) {
          cell += coins.below(buckets);
          if (signed) load = randomSign(coins, 0, 1);
        } else {
          const entry = row * values.length + j;
          if (sided) cell += bucket[rounded[j] > 0 ? 2 * entry : 2 * entry + 1];
          else {
            cell += bucket[entry];
            if (signed) load = rounded[j] * sign[entry];
          }
        }
        total.set(cell, (total.get(cell) ?? 0) + load);
      }
    }
    const loaded = [...total].filter(([, load]) => load !== 0);
    const cells = loaded.map(([cell]) => cell);
    const loads = loaded.map(([, load]) => Math.abs(load));
    const levels = new Array<number>(limit + 1).fill(0);
    for (const load of loads) levels[load]++;
    let [cell, side] = pick(coins, cells, loads, levels);
    if (signed && (total.get(cell) ?? 0) < 0) side = -side;
    const numbers = [cell % buckets];
    if (signed) numbers.push((side + 1) / 2);
    return { row: Math.floor(cell / buckets), numbers };
  };
}

type Pick = (coins: Coins, cells: number[], loads: number[], levels: number[]) => [number, number];

/**
 * (cell, side) by weight, from cells with non-zero loads. Candidates are in classes of equal score; the class where
 * the K-th best lies is cut by random ties, and no tie is ever broken one by one: see the kernel in Python.
 */
function picker(shape: Shape, width: number, sides: number): Pick {
  const favouredCount = shape.count("favoured_count");
  const [favoured, other] = shape.weights();
  const candidates = sides * width;
  const weight = BigInt(favouredCount) * favoured;
  const total = weight + BigInt(candidates - favouredCount) * other;
  return (coins, cells, loads, levels) => {
    const found = cells.length;
    let above = 0;
    let level = levels.length - 1;
    while (level > 0 && above + levels[level] < favouredCount) above += levels[level--];
    const tied = level > 0 ? levels[level] : sides * (width - found);
    let rank: number;
    let inTie = true;
    if (coins.chance(weight, total)) {
      rank = coins.below(favouredCount);
      if (rank < above) return [cells[nthWithin(rank, level + 1, levels.length, loads)], 1];
    } else {
      rank = coins.below(candidates - favouredCount) - (tied - (favouredCount - above));
      inTie = rank < 0;
    }
    if (inTie) {
      rank = coins.below(tied);
      if (level > 0) return [cells[nthWithin(rank, level, level, loads)], 1];
    } else {
      let lower = 0;
      for (let under = 1; under < level; under++) lower += levels[under];
      if (rank < lower) return [cells[nthWithin(rank, 1, level - 1, loads)], 1];
      rank -= lower;
      const zeros = level > 0 ? sides * (width - found) : 0;
      if (rank >= zeros) return [cells[rank - zeros], -1];
    }
    return [nthOther(Math.floor(rank / sides), cells), 1 - 2 * (rank % sides)];
  };
}

/** The place of the n-th score that lies in least .. most. */
function nthWithin(n: number, least: number, most: number, scores: number[]): number {
  let left = n;
  return scores.findIndex((score) => least <= score && score <= most && left-- === 0);
}
