/**
 * One-bit changes: every whole number in the sources that make a report, with its last bit flipped, one at a time. Each
 * must make some vector fail. `npm run mutants` tries all of them; the tests try every twentieth.
 */
import { readdirSync, readFileSync, rmSync } from "node:fs";
import { Worker } from "node:worker_threads";
import { build, type Plugin } from "esbuild";

/**
 * Lines with a number that changes no report: how much is drawn at a time, what is allowed of documents, and what cannot
 * come up (loads of 0 are in no list, a clip is at least 1, what is left of a fraction is 0 or at least its denominator).
 */
const HARMLESS = new RegExp(
  [
    /AT_A_TIME|\(1 \+ 1e-|least = 1|1n << 31n|new RangeError|bound < 1\b|key\.length <= 10|other > 0n/,
    /rest < 0n|\[u, accepted, v, negative\]|\?\? 0\) < 0|under = 1|most >= 0n/,
  ]
    .map((each) => each.source)
    .join("|"),
);
const FILES = ["coins", "hashing", "keys", "record", "samplers", "siphash", "wire"].map(
  (name) => `${name}.ts`,
);

interface Mutant {
  file: string;
  at: number;
  end: number;
  changed: string;
  line: string;
}

/** All of them, in the order of the sources. */
export function mutants(): Mutant[] {
  const files = [...FILES, ...readdirSync("src/mechanisms").map((name) => `mechanisms/${name}`)];
  return files.flatMap((file) => {
    const source = readFileSync(`src/${file}`, "utf-8");
    const found: Mutant[] = [];
    for (const match of source.matchAll(/(?<![\w.$"'`{])(0x[0-9a-f_]+|[0-9][0-9_]*)(n?)(?![\w."'])/g)) {
      const begin = source.lastIndexOf("\n", match.index) + 1;
      const line = source.slice(begin, source.indexOf("\n", match.index)).trim();
      const before = source.slice(begin, match.index);
      const lowest = before.endsWith("nthWithin(rank, "); // no level is lower
      if (/^\s*(\*|\/\*\*|\/\/)|\/\/|["`/]/.test(before) || HARMLESS.test(line) || lowest) continue;
      const changed = `${BigInt(match[1].replaceAll("_", "")) ^ 1n}${match[2]}`;
      found.push({ file, at: match.index, end: match.index + match[0].length, changed, line });
    }
    return found;
  });
}

/** Whether the vectors notice. A report that takes for ever is noticed, too. */
export async function isNoticed(mutant: Mutant, place: number): Promise<boolean> {
  const outfile = `build/mutants/${place}.mjs`;
  const flip: Plugin = {
    name: "flip",
    setup(builder) {
      builder.onLoad({ filter: /src\/.*\.ts$/ }, ({ path }) => {
        const source = readFileSync(path, "utf-8");
        if (!path.endsWith(`src/${mutant.file}`)) return { contents: source, loader: "ts" };
        const contents = source.slice(0, mutant.at) + mutant.changed + source.slice(mutant.end);
        return { contents, loader: "ts" };
      });
    },
  };
  const contents = `
    import { parentPort } from "node:worker_threads";
    import { ALL } from "./test/agreement.js";
    let noticed = false;
    try {
      for (const each of Object.values(ALL)) noticed ||= (await each()).wrong !== undefined;
    } catch {
      noticed = true;
    }
    parentPort.postMessage(noticed);`;
  const stdin = { contents, resolveDir: ".", loader: "ts" as const };
  const common = { bundle: true, format: "esm", platform: "node", logLevel: "error" } as const;
  await build({ ...common, stdin, outfile, plugins: [flip] });
  const worker = new Worker(`./${outfile}`);
  let patience: NodeJS.Timeout | undefined;
  const noticed = await new Promise<boolean>((resolve) => {
    worker.on("message", resolve);
    worker.on("error", () => resolve(true));
    patience = setTimeout(() => resolve(true), 30_000);
  });
  clearTimeout(patience);
  await worker.terminate();
  rmSync(outfile);
  return noticed;
}

/** Those of every `step`-th mutant that no vector notices. */
export async function survivors(step: number): Promise<{ tried: number; survived: string[] }> {
  const survived: string[] = [];
  let tried = 0;
  for (const [place, mutant] of mutants().entries()) {
    if (place % step) continue;
    tried++;
    if (!(await isNoticed(mutant, place)))
      survived.push(`${mutant.file}: ${mutant.line} (${mutant.changed})`);
  }
  return { tried, survived };
}

if (process.argv.includes("--all")) {
  const { tried, survived } = await survivors(1);
  console.log(`${tried} one-bit changes, ${survived.length} not noticed`);
  for (const line of survived) console.log(line);
  process.exitCode = survived.length ? 1 : 0;
}
