/** Coins and seeds that are no secret: words by the rule of tests/vectors, and every way that coins can fall. */
import { readFileSync } from "node:fs";
import { type Coins, type Seeds, WordCoins } from "../src/coins.js";
import { shiftRight, siphashWord, type Word, wordOf } from "../src/siphash.js";
import { Task } from "../src/task.js";

/** Word i of a stream of a group: SipHash-2-4 of i under the key (group, stream). */
export function stream(group: number, number: number): () => Word {
  let at = 0;
  return () => siphashWord(wordOf(group), wordOf(number), wordOf(at++));
}

export class TapeCoins extends WordCoins {
  constructor(readonly word: () => Word) {
    super();
  }

  static vector(group: number, vector: number): TapeCoins {
    return new TapeCoins(stream(group, 2 * vector));
  }
}

export function tapeSeeds(group: number, vector: number): Seeds {
  const word = stream(group, 2 * vector + 1);
  return { draw: (bits, count) => Array.from({ length: count }, () => shiftRight(word(), 64 - bits)) };
}

/** The seeds first, first + 1, ... whatever is asked. */
export function fixedSeeds(first: number): Seeds {
  return { draw: (_, count) => Array.from({ length: count }, (_, at) => wordOf(first + at)) };
}

export function hex(bytes: Uint8Array): string {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

// biome-ignore lint/suspicious/noExplicitAny: a file of tests/vectors is whatever is in it
export function vectors(name: string): any {
  return JSON.parse(readFileSync(new URL(`../../../../tests/vectors/${name}`, import.meta.url), "utf-8"));
}

export function taskOf(document: string): Promise<Task> {
  return Task.parse(new TextEncoder().encode(document));
}

/** A probability: a fraction times what Laplace branches add to it, in double precision. */
interface Mass {
  over: bigint;
  under: bigint;
  laplace: number;
}

interface Fork {
  question: string;
  options: [bigint, Mass][];
  choice: number;
}

/** Coins that visit every outcome once, as hubbub.checks.exact does it in Python. */
export class Enumeration implements Coins {
  #path: Fork[] = [];
  #depth = 0;

  #branch(question: string, outcomes: () => [bigint, Mass][]): bigint {
    if (this.#depth === this.#path.length) {
      this.#path.push({ question, options: outcomes().filter(([, { over }]) => over > 0n), choice: 0 });
    }
    const fork = this.#path[this.#depth++];
    if (fork.question !== question) throw new Error("the randomizer does not do the same twice");
    return fork.options[fork.choice][0];
  }

  below(bound: number): number;
  below(bound: bigint): bigint;
  below(bound: number | bigint): number | bigint {
    const each = { over: 1n, under: BigInt(bound), laplace: 1 };
    const drawn = this.#branch(`below ${bound}`, () =>
      Array.from({ length: Number(bound) }, (_, value) => [BigInt(value), each]),
    );
    return typeof bound === "number" ? Number(drawn) : drawn;
  }

  chance(numerator: number, denominator: number): boolean;
  chance(numerator: bigint, denominator: bigint): boolean;
  chance(numerator: number | bigint, denominator: number | bigint): boolean {
    const [over, under] = [BigInt(numerator), BigInt(denominator)];
    const answer = this.#branch(`chance ${over} ${under}`, () => [
      [0n, { over: under - over, under, laplace: 1 }],
      [1n, { over, under, laplace: 1 }],
    ]);
    return answer === 1n;
  }

  draw(pool: bigint, bound: bigint): [bigint, bigint] {
    return [this.below(bound), pool];
  }

  coin(pool: bigint, numerator: bigint, denominator: bigint): [boolean, bigint] {
    return [this.chance(numerator, denominator), pool];
  }

  clampedLaplace(value: bigint, numerator: bigint, denominator: bigint, limit: bigint): bigint {
    return this.#branch(`laplace ${value} ${numerator} ${denominator} ${limit}`, () =>
      laplaceLaw(Number(value), Number(numerator) / Number(denominator), Number(limit)).map(([y, p]) => [
        BigInt(y),
        { over: 1n, under: 1n, laplace: p },
      ]),
    );
  }

  /** The law of what `run` returns when it flips these coins: [outcome, numerator, denominator, double]. */
  law(run: (coins: Coins) => string): [string, string, string, number][] {
    const result = new Map<string, Mass>();
    do {
      this.#depth = 0;
      const outcome = run(this);
      if (this.#depth < this.#path.length)
        throw new Error("the randomizer does not flip the same coins twice");
      let mass: Mass = { over: 1n, under: 1n, laplace: 1 };
      for (const { options, choice } of this.#path) {
        const [, each] = options[choice];
        mass = {
          over: mass.over * each.over,
          under: mass.under * each.under,
          laplace: mass.laplace * each.laplace,
        };
      }
      result.set(outcome, sum(result.get(outcome) ?? { over: 0n, under: 1n, laplace: 0 }, mass));
    } while (this.#next());
    return [...result].map(([outcome, { over, under, laplace }]) => [
      outcome,
      over.toString(),
      under.toString(),
      laplace,
    ]);
  }

  #next(): boolean {
    for (let last = this.#path.at(-1); last; last = this.#path.at(-1)) {
      if (++last.choice < last.options.length) return true;
      this.#path.pop();
    }
    return false;
  }
}

/** Fractions add up as fractions; with Laplace branches, doubles as doubles. */
function sum(one: Mass, two: Mass): Mass {
  const [over, under] = [one.over * two.under + two.over * one.under, one.under * two.under];
  const common = divisor(over, under);
  const double = (Number(two.over) / Number(two.under)) * two.laplace;
  return { over: over / common, under: under / common, laplace: one.laplace + double };
}

function divisor(one: bigint, two: bigint): bigint {
  return two === 0n ? one : divisor(two, one % two);
}

/** Discrete Laplace noise around `value`, clamped to [-limit, limit]. */
function laplaceLaw(value: number, scale: number, limit: number): [number, number][] {
  const decay = Math.exp(-1 / scale);
  const tail = (distance: number): number => decay ** distance / (1 + decay);
  const [low, high] = [-limit - value, limit - value];
  const law: [number, number][] = [[-limit, low < 0 ? tail(-low) : 1 - tail(low + 1)]];
  for (let y = -limit + 1; y < limit; y++)
    law.push([y, ((1 - decay) / (1 + decay)) * decay ** Math.abs(y - value)]);
  return [...law, [limit, high > 0 ? tail(high) : 1 - tail(1 - high)]];
}
