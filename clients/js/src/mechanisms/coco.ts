/** CoCo: signed buckets in pairs, the opposite side suppressed. In Python: hubbub/mechanisms/coco.py. */
import { GRID, nthOther, randomSign } from "../samplers.js";
import type { HashedKernel, Shape } from "./shape.js";

export function coco(shape: Shape): HashedKernel {
  const [limit, buckets] = [shape.count("limit"), shape.count("buckets")];
  const [favoured, other] = shape.weights();
  const both = favoured + other;
  const total = BigInt(limit) * both + BigInt(2 * buckets - 2 * limit) * other;
  return (coins, { values, bucket, sign }) => {
    const place: number[] = [];
    for (let j = 0; j < limit; j++) place.push(j < values.length ? bucket[j] : coins.below(buckets));
    const hits = [...new Set(place)];
    let pair: number;
    let side: number;
    if (coins.chance(BigInt(hits.length) * both, total)) {
      pair = hits[coins.below(hits.length)];
      const members = place.flatMap((one, j) => (one === pair ? [j] : []));
      const winner = members[coins.below(members.length)];
      side =
        winner < values.length
          ? sign[winner] * randomSign(coins, values[winner], GRID)
          : randomSign(coins, 0, 1);
      if (!coins.chance(favoured, both)) side = -side;
    } else {
      pair = nthOther(coins.below(buckets - hits.length), hits);
      side = randomSign(coins, 0, 1);
    }
    return { numbers: [pair, (side + 1) / 2] };
  };
}
