/** Sampled: one random entry, then randomized response over hash buckets. In Python: hubbub/mechanisms/sampled.py. */
import { GRID, randomizedResponse, randomSign } from "../samplers.js";
import type { HashedKernel, Shape } from "./shape.js";

/** Kinds: 0 sets, 1 both sides of a key, 2 a bucket and a side. */
export function sampled(shape: Shape): HashedKernel {
  const [kind, limit, outcomes] = [shape.count("kind", 0), shape.count("limit"), shape.count("outcomes")];
  const [favoured, other] = shape.weights();
  return (coins, { values, bucket, sign }) => {
    const entry = coins.below(limit);
    let truth = -1;
    if (entry < values.length) {
      if (kind === 0) truth = bucket[entry];
      else {
        const up = randomSign(coins, values[entry], GRID);
        if (kind === 1) truth = bucket[up > 0 ? 2 * entry : 2 * entry + 1];
        else truth = 2 * bucket[entry] + (1 + up * sign[entry]) / 2;
      }
    }
    return { numbers: [randomizedResponse(coins, truth, outcomes, favoured, other)] };
  };
}
