/** Mechanisms over a list of keys. In Python: hubbub/mechanisms/privkv.py, pckv_grr.py and hadamard.py. */
import type { Coins } from "../coins.js";
import { GRID, randomizedResponse, randomSign } from "../samplers.js";
import { parity } from "../siphash.js";
import type { ListedKernel, Shape } from "./shape.js";

/** PrivKV: is a random key there, and with which sign? One answer of three, or presence and sign in two steps. */
export function privkv(shape: Shape, inTwoSteps: boolean): ListedKernel {
  const size = shape.count("size");
  const [favoured, other] = shape.weights();
  const side = (coins: Coins, value: number): number => (1 + randomSign(coins, value, GRID)) / 2;
  return (coins, places, values) => {
    const key = coins.below(size);
    const entry = places.indexOf(key);
    if (!inTwoSteps) {
      const truth = entry >= 0 ? side(coins, values[entry]) : 2;
      return [key, randomizedResponse(coins, truth, 3, favoured, other)];
    }
    if (randomizedResponse(coins, entry >= 0 ? 1 : 0, 2, favoured, other)) {
      const truth = side(coins, entry >= 0 ? values[entry] : 0);
      return [key, randomizedResponse(coins, truth, 2, favoured, other)];
    }
    return [key, 2];
  };
}

/** PCKV-GRR: one entry of the record by randomized response over all keys, dummies and sides. */
export function pckvGrr(shape: Shape): ListedKernel {
  const [size, limit] = [shape.count("size"), shape.count("limit")];
  const [favoured, other] = shape.weights();
  return (coins, places, values) => {
    const place = coins.below(limit);
    const [key, value] = place < places.length ? [places[place], values[place]] : [size + place, 0];
    const truth = 2 * key + (1 + randomSign(coins, value, GRID)) / 2;
    return [randomizedResponse(coins, truth, 2 * (size + limit), favoured, other)];
  };
}

/** Hadamard response for records of one key: half a block of Walsh columns is favoured. */
export function hadamard(shape: Shape): ListedKernel {
  const [blocks, size] = [shape.count("blocks"), shape.count("size", 2)];
  const [favoured, other] = shape.weights();
  const half = size / 2;
  const weight = BigInt(half) * favoured;
  const total = weight + BigInt(blocks * size - half) * other;
  return (coins, places) => {
    if (places.length === 0) return [coins.below(blocks * size)];
    const [mine, line] = [places[0] % blocks, 1 + Math.floor(places[0] / blocks)];
    // A uniform column of one half: any column, with one bit of the row flipped if need be.
    const within = (wanted: number): number => {
      const column = coins.below(size);
      return mine * size + (parity(line & column) === wanted ? column : column ^ (line & -line));
    };
    if (coins.chance(weight, total)) return [within(0)];
    const place = coins.below(blocks * size - half);
    if (place < half) return [within(1)];
    return [place - half < mine * size ? place - half : place - half + size];
  };
}
