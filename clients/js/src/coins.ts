/**
 * Who flips. The secret coins come from the operating system; a client takes no others. Public seeds are drawn from
 * the same source, but never from coins. A task is taken only where there is WebCrypto, so the source is there. Beside
 * it in Python: hubbub/primitives/coins.py.
 */
import { EMPTY, pooledBelow, pooledCoin, sampleClampedLaplace } from "./samplers.js";
import { shiftRight, type Word } from "./siphash.js";

/** What a randomizer may ask: these questions and no others, so that all answers can be enumerated. */
export interface Coins {
  /** A uniform whole number in 0 .. bound - 1; bounds above 2^32 are BigInts. */
  below(bound: number): number;
  below(bound: bigint): bigint;
  /** True with probability exactly numerator / denominator. */
  chance(numerator: number, denominator: number): boolean;
  chance(numerator: bigint, denominator: bigint): boolean;
  /** What `below` draws, and the pool of random digits that is left. */
  draw(pool: bigint, bound: bigint): [bigint, bigint];
  /** What `chance` flips, and the pool that is left. */
  coin(pool: bigint, numerator: bigint, denominator: bigint): [boolean, bigint];
  /** value + discrete Laplace noise of scale numerator / denominator, clamped to [-limit, limit]. */
  clampedLaplace(value: bigint, numerator: bigint, denominator: bigint, limit: bigint): bigint;
}

/** Exact samplers on top of random words, read by the rule of compiled Python kernels. */
export abstract class WordCoins implements Coins {
  /** The next 64 random bits. */
  abstract word(): Word;

  below(bound: number): number;
  below(bound: bigint): bigint;
  below(bound: number | bigint): number | bigint {
    if (bound < 1 || bound > (typeof bound === "number" ? 2 ** 32 : 1n << 64n))
      throw new RangeError(String(bound));
    if (typeof bound === "bigint") return this.draw(EMPTY, bound)[0];
    const mask = bound === 1 ? 0 : 0xffffffff >>> Math.clz32(bound - 1);
    while (true) {
      const drawn = (this.word()[1] & mask) >>> 0;
      if (drawn < bound) return drawn;
    }
  }

  chance(numerator: number, denominator: number): boolean;
  chance(numerator: bigint, denominator: bigint): boolean;
  chance(numerator: number | bigint, denominator: number | bigint): boolean {
    return this.below(denominator as number) < numerator;
  }

  draw(pool: bigint, bound: bigint): [bigint, bigint] {
    return pooledBelow(this, pool, bound);
  }

  coin(pool: bigint, numerator: bigint, denominator: bigint): [boolean, bigint] {
    return pooledCoin(this, pool, numerator, denominator);
  }

  clampedLaplace(value: bigint, numerator: bigint, denominator: bigint, limit: bigint): bigint {
    return sampleClampedLaplace(this, value, numerator, denominator, limit);
  }
}

/** Words that are drawn from the operating system at a time. */
const AT_A_TIME = 32;

/** Coins from the operating system. A client makes new ones for every report, so nothing is ever flipped twice. */
export class SecretCoins extends WordCoins {
  #halves = new Uint32Array(2 * AT_A_TIME);
  #used = 2 * AT_A_TIME;

  word(): Word {
    if (this.#used === this.#halves.length) {
      crypto.getRandomValues(this.#halves);
      this.#used = 0;
    }
    this.#used += 2;
    return [this.#halves[this.#used - 2], this.#halves[this.#used - 1]];
  }
}

/** Public randomness: which hash functions a report uses. */
export interface Seeds {
  /** `count` numbers of `bits` bits. */
  draw(bits: number, count: number): Word[];
}

/** Public seeds from the operating system. */
export const systemSeeds: Seeds = {
  draw(bits, count) {
    const halves = crypto.getRandomValues(new Uint32Array(2 * count));
    return Array.from({ length: count }, (_, at) =>
      shiftRight([halves[2 * at], halves[2 * at + 1]], 64 - bits),
    );
  },
};
