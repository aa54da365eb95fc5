/** Collision, and local hashing, which is Collision with one entry. In Python: hubbub/mechanisms/collision.py. */
import { GRID, nthOther, randomSign } from "../samplers.js";
import type { HashedKernel, Shape } from "./shape.js";

export function collision(shape: Shape): HashedKernel {
  const [sided, limit, buckets] = [shape.flag("sided"), shape.count("limit"), shape.count("buckets")];
  const [favoured, other] = shape.weights();
  const total = BigInt(limit) * favoured + BigInt(buckets - limit) * other;
  return (coins, { values, bucket }) => {
    const seen = new Set<number>();
    values.forEach((value, j) => {
      if (!sided) seen.add(bucket[j]);
      else seen.add(randomSign(coins, value, GRID) > 0 ? bucket[2 * j] : bucket[2 * j + 1]);
    });
    const hits = [...seen];
    const answer = coins.chance(BigInt(hits.length) * favoured, total)
      ? hits[coins.below(hits.length)]
      : nthOther(coins.below(buckets - hits.length), hits);
    return { numbers: [answer] };
  };
}
