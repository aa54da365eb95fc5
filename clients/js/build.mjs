// Builds dist/ (an ES module, and one plain script with the global `hubbub`), or with --tests the tests (in build/test).
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
  rmSync("dist", { recursive: true, force: true });
  const source = { ...common, entryPoints: ["src/index.ts"] };
  await build({ ...source, format: "esm", outfile: "dist/hubbub.js" });
  await build({
    ...common,
    entryPoints: ["src/node.ts"],
    platform: "node",
    format: "esm",
    outfile: "dist/node.js",
  });
  await build({
    ...source,
    format: "iife",
    globalName: "hubbub",
    minify: true,
    outfile: "dist/hubbub.min.js",
  });
}
