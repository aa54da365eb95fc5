// Builds an ES module, the same for Node, and one plain script with the global `hubbub` (in dist/, or in the folder that
// is named), or with --tests the tests (in build/test).
import { readdirSync, rmSync } from "node:fs";
import { build } from "esbuild";

const common = { bundle: true, target: "es2022", legalComments: "none", logLevel: "warning" };
const [wanted, folder = "build/test"] = process.argv.slice(2);
if (wanted === "--tests") {
  const entries = readdirSync("test").filter((name) => name.endsWith(".ts"));
  await build({
    ...common,
    entryPoints: entries.map((name) => `test/${name}`),
    outdir: folder,
    platform: "node",
    format: "esm",
    outExtension: { ".js": ".mjs" },
    external: ["esbuild"],
  });
} else {
  const out = wanted ?? "dist";
  rmSync(out, { recursive: true, force: true });
  const source = { ...common, entryPoints: ["src/index.ts"] };
  await build({ ...source, format: "esm", outfile: `${out}/hubbub.js` });
  await build({
    ...common,
    entryPoints: ["src/node.ts"],
    platform: "node",
    format: "esm",
    outfile: `${out}/node.js`,
  });
  await build({
    ...source,
    format: "iife",
    globalName: "hubbub",
    minify: true,
    outfile: `${out}/hubbub.min.js`,
  });
}
